"""Explain why a rollout is not complete."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RolloutFacts:
    """The state of a rollout, from which the explanation is made."""

    dag: str
    queued: int
    running: int
    retrying: int
    failed: int
    canceled: int
    first_failure: str | None
    lacks: list[str]
    """What the new generations still lack, one text per output."""


def explain_rollout(facts: RolloutFacts) -> str | None:
    """Return what a rollout waits for; None: nothing is missing."""
    if not facts.lacks:
        return None
    if facts.failed:
        failures = f"{facts.failed} {_count_tasks(facts.failed)} failed permanently"
        return (
            f"{failures}; the first: {facts.first_failure}. Correct the DAG and deploy it again, "
            f"or roll back: trace rollback {facts.dag}"
        )
    if facts.running or facts.queued:
        return f"{facts.running} {_count_tasks(facts.running)} running, {facts.queued} queued"
    if facts.retrying:
        return f"{facts.retrying} {_count_tasks(facts.retrying)} failed and will be retried"
    canceled = (
        f"{facts.canceled} {_count_tasks(facts.canceled)} canceled, " if facts.canceled else ""
    )
    return (
        f"{canceled}no task is left to run, but {'; '.join(facts.lacks)}. Request the missing "
        f"blocks (trace trigger, trace backfill), or switch without them: trace promote {facts.dag}"
    )


def _count_tasks(count: int) -> str:
    return "task" if count == 1 else "tasks"
