"""Why a rollout is not complete: one place, in words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RolloutFacts:
    """What the answer is made from."""

    dag: str
    queued: int
    running: int
    retrying: int
    failed: int
    canceled: int
    first_failure: str | None
    lacks: list[str]
    """What the new generations lack, an output each."""


def explain_rollout(facts: RolloutFacts) -> str | None:
    """What a rollout waits for; None when nothing is missing any more."""
    if not facts.lacks:
        return None
    if facts.failed:
        which = f"{facts.failed} {_tasks(facts.failed)} failed for good"
        return (
            f"{which}; the first: {facts.first_failure}. Mend the DAG and deploy it again, "
            f"or go back: trace rollback {facts.dag}"
        )
    if facts.running or facts.queued:
        return f"{facts.running} {_tasks(facts.running)} running, {facts.queued} queued"
    if facts.retrying:
        return f"{facts.retrying} {_tasks(facts.retrying)} failed and will be tried again"
    canceled = f"{facts.canceled} {_tasks(facts.canceled)} canceled, " if facts.canceled else ""
    return (
        f"{canceled}nothing is left to run, but {'; '.join(facts.lacks)}. Ask "
        f"for it (trace trigger, trace backfill), or do without: trace promote {facts.dag}"
    )


def _tasks(count: int) -> str:
    return "task" if count == 1 else "tasks"
