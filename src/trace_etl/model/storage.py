"""References to stored objects, and the prefixes and table names derived from dataset ids."""

import re
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


DATASETS = "cold/datasets/"
BUFFERS = "buffers/"
SCRATCH = "scratch/"
EXPORTS = "exports/"
BUNDLES = "udf/"
POSTGRES = "postgres"
"""The scheme of a storage reference to a table of Postgres data."""
PARQUET = "parquet"
"""The format of a dataset's files, unless its operator writes another."""


def generation_prefix(dataset_uuid: UUID, dataset_version: UUID | str) -> str:
    """Return the prefix of all partitions of one generation of a dataset."""
    return f"{DATASETS}{dataset_uuid}/{dataset_version}/"


def buffer_prefix(dataset_uuid: UUID) -> str:
    """Return the prefix of all batches of a buffered dataset."""
    return f"{BUFFERS}{dataset_uuid}/"


def short_buffer_prefix(prefix: str) -> str:
    """Return the second prefix of an attempt's batches: the one of `buffer_prefix` without the dataset.

    The attempt may use either: `buffers/{dataset_uuid}/{task_id}/{attempt}/` or
    `buffers/{task_id}/{attempt}/`.
    """
    _, _, attempt = prefix.removeprefix(BUFFERS).partition("/")
    return BUFFERS + attempt


def scratch_prefix(org_id: UUID) -> str:
    """Return the prefix of the temporary objects of an organisation's tasks."""
    return f"{SCRATCH}{org_id}/"


def export_prefix(org_id: UUID) -> str:
    """Return the prefix of the results that an organisation's tasks export for people."""
    return f"{EXPORTS}{org_id}/"


def bundle_key(org_root: str, sha256: str) -> str:
    """Return the key of a bundle of user-defined functions."""
    return f"{org_root}/{BUNDLES}{sha256}.zip"


def attempt_prefix(parent: str, task_id: UUID, attempt: int) -> str:
    """Return the only prefix that this attempt of this task may write under."""
    return f"{parent}{task_id}/{attempt}/"


def batch_prefixes(dataset_uuid: UUID, task_id: UUID, attempt: int) -> tuple[str, str]:
    """Return the prefixes of the batches that an attempt may publish to a buffered dataset."""
    own = attempt_prefix(buffer_prefix(dataset_uuid), task_id, attempt)
    return own, short_buffer_prefix(own)


_ATTEMPT_KEY = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([1-9][0-9]{0,8})/.")


def split_attempt_key(key: str) -> tuple[UUID, int] | None:
    """Return the task and attempt of a key that follows the parent of an attempt prefix, or None."""
    match = _ATTEMPT_KEY.match(key)
    return None if match is None else (UUID(match[1]), int(match[2]))


def key_of_url(url: str) -> str:
    """Return the key (`bucket/path`) of a canonical URL."""
    return url.removeprefix("s3://")


def hot_table(dataset_uuid: UUID, dataset_version: UUID) -> str:
    """Return the table in Postgres data that holds the newest rows of one generation of a dataset."""
    return f"dataset_{dataset_uuid.hex}_{dataset_version.hex[:16]}"


def table_ref(table: str) -> dict[str, str]:
    """Return the storage reference of a table in Postgres data."""
    return {"scheme": POSTGRES, "table": table}
