"""References to stored objects, and the prefixes and table names derived from dataset ids."""

from dataclasses import dataclass
from uuid import UUID

SUCCESS_MARKER = "_SUCCESS"


@dataclass(frozen=True)
class StorageRef:
    """A set of objects: scheme, bucket, prefix that ends with a slash, and file name pattern."""

    scheme: str
    bucket: str
    prefix: str
    glob: str = "*.parquet"

    @property
    def url(self) -> str:
        """The canonical form in capability tokens and API bodies, the same for every scheme."""
        return f"s3://{self.bucket}/{self.prefix}"


BUFFERS = "buffers/"


def generation_prefix(dataset_uuid: UUID, dataset_version: UUID | str) -> str:
    """Return the prefix of all partitions of one generation of a dataset."""
    return f"cold/datasets/{dataset_uuid}/{dataset_version}/"


def buffer_prefix(dataset_uuid: UUID) -> str:
    """Return the prefix of all batches of a buffered dataset."""
    return f"{BUFFERS}{dataset_uuid}/"


def attempt_prefix(parent: str, task_id: UUID, attempt: int) -> str:
    """Return the only prefix that this attempt of this task may write under."""
    return f"{parent}{task_id}/{attempt}/"


def hot_table(dataset_uuid: UUID, dataset_version: UUID) -> str:
    """Return the table in Postgres data that holds the newest rows of one generation of a dataset."""
    return f"dataset_{dataset_uuid.hex}_{dataset_version.hex[:16]}"


def hot_location(table: str) -> str:
    """Return the `location` of an output that is a hot table."""
    return f"postgres_table:{table}"
