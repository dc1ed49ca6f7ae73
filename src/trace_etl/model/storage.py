"""Where bytes live: storage references and the prefixes derived from them."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

SUCCESS_MARKER = "_SUCCESS"


@dataclass(frozen=True)
class StorageRef:
    """A directory of objects: scheme, bucket, prefix ending in a slash, and which files count."""

    scheme: str
    bucket: str
    prefix: str
    glob: str = "*.parquet"

    @property
    def url(self) -> str:
        """The canonical form that capability tokens carry, whatever the scheme."""
        return f"s3://{self.bucket}/{self.prefix}"

    def path(self, root: Path) -> Path:
        """The directory behind a `file` reference."""
        return root / self.bucket / self.prefix


BUFFERS = "buffers/"


def generation_place(dataset_uuid: UUID, dataset_version: UUID | str) -> str:
    """The prefix that all partitions of one generation of a dataset are under."""
    return f"cold/datasets/{dataset_uuid}/{dataset_version}/"


def buffer_place(dataset_uuid: UUID) -> str:
    """The prefix that all batches for a dataset are under."""
    return f"{BUFFERS}{dataset_uuid}/"


def attempt_prefix(place: str, task_id: UUID, attempt: int) -> str:
    """The one prefix of a place that this attempt of this task may write under."""
    return f"{place}{task_id}/{attempt}/"


def hot_table(dataset_uuid: UUID, dataset_version: UUID) -> str:
    """The table in Postgres data that holds the newest rows of one generation of a dataset."""
    return f"dataset_{dataset_uuid.hex}_{dataset_version.hex[:16]}"


def hot_location(table: str) -> str:
    """A hot table on the wire."""
    return f"postgres_table:{table}"
