"""The parts of a deploy plan: what happens to jobs, published names and columns."""

from dataclasses import dataclass
from typing import Any

from trace_etl.model.dag import JobAction, JobChange


@dataclass(frozen=True)
class GenerationContents:
    """The contents of a generation: its partitions, or the scopes of its events if it has none."""

    scopes: int
    partitions: int
    row_count: int
    byte_count: int
    ranges: list[tuple[int, int]]
    """First and last blocks; adjacent ranges are joined."""
    tasks: int
    """The tasks that wrote the partitions. A task may write several, to several outputs."""


@dataclass(frozen=True)
class FieldDifference:
    """A field whose value differs between the deployed definition and the new one."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class PlannedJob:
    """The action that a deploy takes for one job.

    - keep: no change.
    - adopt: the new definition applies immediately, on the same generation.
    - start: a new generation is current immediately, because the old one has no contents.
    - build: a new generation is built beside the old one, which readers see until the new one is complete.
    - retire: the job is removed.
    """

    name: str
    change: JobChange
    action: JobAction
    fields: list[FieldDifference]
    because: list[str]
    """Why its outputs get a new generation: its changed fields, or changed jobs upstream."""
    rebuild: dict[str, GenerationContents]
    """The contents of the old generation that the new one must cover, by output."""

    @property
    def has_new_generation(self) -> bool:
        return self.action in ("start", "build")


@dataclass(frozen=True)
class PlannedName:
    """A published name and its output, as `job.output`, before and after; None: not published."""

    name: str
    before: str | None
    after: str | None
    rebuild: GenerationContents | None
    """The contents that the new output must cover before the name moves; None: the name moves immediately."""
    readers: list[str]
    """Jobs of other DAGs, as `dag.job`, that read the old output and get no new data."""


@dataclass(frozen=True)
class AddedColumn:
    """A column that a deploy adds to a buffered dataset. Existing rows have null in it."""

    dataset: str
    column: str
    type: str
