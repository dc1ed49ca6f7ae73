"""The kinds of problems that make a stack unhealthy."""

from typing import Literal

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
