"""The certificate of a partition: what was verified, its hashes, and what it was made from."""

from datetime import datetime
from typing import Any
from uuid import UUID

from trace_etl.api.body import ListReply, Reply
from trace_etl.api.task.lifecycle import SuccessFile
from trace_etl.api.task.verification import VerifiedRange


class CertifiedInput(Reply):
    """A partition that was read, with its content hash at that time."""

    dataset: str
    dataset_version: UUID
    partition_key: str
    """`*` means the whole input."""
    content_hash: str | None
    """Null: not known. The partition has no content hash, or was replaced while it was read."""


class CertifiedDefinition(Reply):
    """The definition that made a partition."""

    operator: str | None = None
    definition_hash: str | None = None
    """Hash of the whole definition of the job."""
    generation_hash: str
    """Hash of everything that determines the rows: this definition and those of all upstream jobs."""
    dag_version: UUID | None = None
    config_hash: str | None = None
    """The hash of the definition as the task reported it."""


class Certificate(Reply):
    """What is certified of one committed partition."""

    partition_key: str
    start: int | None
    end: int | None
    row_count: int
    byte_count: int
    columns: list[dict[str, str]]
    content_hash: str | None
    """Hash of its rows, in any order. Null: written by an older release, or not as Parquet."""
    row_sum: str | None
    files: list[SuccessFile] | None
    verified: VerifiedRange | None
    """What was verified of its blocks. Null: they were not read from a chain."""
    inputs: list[CertifiedInput]
    definition: CertifiedDefinition
    task_id: UUID
    attempt: int
    committed_at: datetime


class StoredCertificate(Certificate):
    """A certificate, and where the files are."""

    storage_ref: dict[str, Any]


class CertificateList(ListReply[StoredCertificate]):
    """One page of the certificates of a dataset's current generation."""

    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    gaps: list[tuple[int, int]]
    """Blocks without a partition between the first and the last, on the first page only."""
