"""The health of a stack: its problems, and the facts about a followed chain."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

ProblemKind = Literal[
    "failed_tasks",
    "failed_side_effects",
    "failed_batches",
    "paused_jobs",
    "queue_unavailable",
    "runtime_without_workers",
    "dead_worker",
    "chain_stopped",
    "chain_silent",
    "chain_lagging",
]


@dataclass(frozen=True)
class HealthProblem:
    """A problem that a person should look at, and the object that has it."""

    kind: ProblemKind
    message: str
    count: int
    dag: str | None
    job: str | None
    task_id: UUID | None
    runtime: str | None


@dataclass
class ChainFacts:
    """The facts about a followed chain that its health depends on."""

    dag: str
    job: str
    task_id: UUID
    status: str
    is_paused: bool
    lag_blocks: int | None
    """Blocks from the last written one to the head."""
    lag_seconds: int | None
    """Seconds between the headers of both; None: unknown."""
    silent_seconds: int | None
    """Seconds since the attempt reported the head, or since it started; None: no attempt runs."""
