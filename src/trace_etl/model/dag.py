"""A DAG as it was written: jobs, edges, published datasets."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Source:
    """What makes a source job emit: `manual`, `cron`, `webhook` or `always_on`."""

    kind: str
    schedule: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class JobInput:
    """An edge: from another job's output, or from a published dataset."""

    name: str
    job: str | None = None
    output: str | None = None
    dataset: str | None = None
    where: dict[str, Any] | None = None


@dataclass(frozen=True)
class Bootstrap:
    """Blocks that a source asks for by itself when it is first deployed, in pieces of `chunk`."""

    start: int
    end: int
    chunk: int | None = None


@dataclass(frozen=True)
class Udf:
    """A user's function: an immutable bundle, pinned by its hash."""

    bundle: str
    sha256: str
    handler: str


@dataclass(frozen=True)
class Job:
    """A node of the DAG."""

    name: str
    activation: str
    runtime: str
    operator: str
    inputs: tuple[JobInput, ...]
    outputs: tuple[str, ...]
    config: dict[str, Any]
    execution_strategy: str
    update_strategy: str
    unique_key: tuple[str, ...]
    source: Source | None
    max_attempts: int
    timeout_seconds: int
    heartbeat_timeout_seconds: int
    priority: str
    max_concurrency: int | None
    max_queue_depth: int | None
    max_queue_age: int | None
    bootstrap: Bootstrap | None = None
    secrets: tuple[str, ...] = ()
    udf: Udf | None = None


@dataclass(frozen=True)
class Column:
    """A column that a published dataset promises."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True)
class Publication:
    """A dataset's public name."""

    name: str
    job: str
    output: str
    description: str = ""
    storage: str = "parquet"
    write_mode: str = "replace"
    columns: tuple[Column, ...] | None = None


@dataclass(frozen=True)
class Dag:
    name: str
    jobs: tuple[Job, ...]
    publish: tuple[Publication, ...]

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)
