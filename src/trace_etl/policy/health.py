"""Decide whether a person must act: what is wrong in a stack, in one list."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trace_etl.model.health import ChainFacts, HealthProblem, ProblemKind

MAX_LAG_SECONDS = 120
"""A followed chain that is further behind its head is a problem."""
MAX_SILENCE_SECONDS = 60
"""A follower reports every few seconds. After this silence, it hangs or cannot reach its node."""


@dataclass(frozen=True)
class HealthFacts:
    """What the health of a stack depends on."""

    failed: int
    outbox_failed: int
    batches_failed: int
    paused: int
    waiting_without_workers: Mapping[str, int]
    """Queued tasks of each runtime that no worker serves."""
    workers: "WorkerFacts | None"
    """None: the queue does not answer."""
    chains: Sequence[ChainFacts]


@dataclass(frozen=True)
class WorkerFacts:
    """The ids of workers that are connected, and of those that disconnected without closing their connection."""

    connected: set[str]
    lost: set[str]


def find_problems(facts: HealthFacts) -> list[HealthProblem]:
    """List what is wrong; an empty list means that everything is healthy."""
    return [
        *_count_failures(facts),
        *_check_workers(facts),
        *(problem for chain in facts.chains if (problem := _check_chain(chain)) is not None),
    ]


def _count_failures(facts: HealthFacts) -> Iterator[HealthProblem]:
    counts: tuple[tuple[ProblemKind, int, str, str], ...] = (
        ("failed_tasks", facts.failed, "task", "failed permanently"),
        ("failed_side_effects", facts.outbox_failed, "side effect", "failed"),
        ("failed_batches", facts.batches_failed, "batch", "dead-lettered"),
        ("paused_jobs", facts.paused, "job", "paused"),
    )
    for kind, count, noun, state in counts:
        if count:
            yield _make_problem(kind, f"{_count(count, noun)} {state}", count)


def _check_workers(facts: HealthFacts) -> Iterator[HealthProblem]:
    if facts.workers is None:
        yield _make_problem(
            "queue_unavailable", "the queue does not answer, so no worker can be woken"
        )
        return
    for runtime, queued in facts.waiting_without_workers.items():
        message = f"no worker is ready for runtime {runtime}: {_count(queued, 'task')} waiting"
        yield _make_problem("runtime_without_workers", message, queued, runtime=runtime)
    live = {_name_worker(worker) for worker in facts.workers.connected}
    for name in sorted({_name_worker(worker) for worker in facts.workers.lost} - live):
        yield _make_problem("dead_worker", f"worker {name} ended unexpectedly and was not replaced")


def _name_worker(worker_id: str) -> str:
    """Return the configured name: a restarted worker keeps it, with another host or process id."""
    return worker_id.rsplit(":", 2)[0]


def _check_chain(chain: ChainFacts) -> HealthProblem | None:
    def problem(kind: ProblemKind, message: str) -> HealthProblem:
        return _make_problem(kind, f"{chain.dag}.{chain.job} {message}", chain=chain)

    if chain.status != "Running":
        if chain.is_paused:
            return None  # counted as a paused job
        return problem("chain_stopped", f"does not follow its chain: its task is {chain.status}")
    if chain.silent_seconds is not None and chain.silent_seconds > MAX_SILENCE_SECONDS:
        return problem(
            "chain_silent", f"has not read the head of its chain for {chain.silent_seconds:,} s"
        )
    if chain.lag_blocks and chain.lag_seconds is not None and chain.lag_seconds > MAX_LAG_SECONDS:
        behind = f"{_count(chain.lag_blocks, 'block')}, {chain.lag_seconds:,} s"
        return problem("chain_lagging", f"is {behind} behind its chain")
    return None


def _make_problem(
    kind: ProblemKind,
    message: str,
    count: int = 1,
    *,
    chain: ChainFacts | None = None,
    runtime: str | None = None,
) -> HealthProblem:
    about = (chain.dag, chain.job, chain.task_id) if chain else (None, None, None)
    return HealthProblem(kind, message, count, *about, runtime)


def _count(count: int, noun: str) -> str:
    plural = "batches" if noun == "batch" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
