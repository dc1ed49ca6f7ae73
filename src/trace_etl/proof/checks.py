"""Compare stored files with certificates: coverage, links, files and rows."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trace_etl.api.proof.certificates import Certificate, StoredCertificate
from trace_etl.api.task.lifecycle import SuccessFile
from trace_etl.model.scope import Range
from trace_etl.model.storage import SUCCESS_MARKER, StorageRef
from trace_etl.objects.errors import ObjectMissing, StorageError
from trace_etl.objects.store import ObjectStore, object_key
from trace_etl.proof.content_hash import RowHasher
from trace_etl.proof.row_encoding import UnknownType

_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Problem:
    """Something that does not match, and the partition it is about."""

    partition_key: str | None
    check: str
    """`coverage`, `certificate`, `link`, `file`, `rows`, `chain` or `rebuild`."""
    problem: str


@dataclass
class Checked:
    """What was checked so far."""

    partitions: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])
    rejected: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Answers of nodes that were rejected while the partitions were made: the rows come from others."""

    def add(self, certificate: Certificate, problems: Sequence[Problem]) -> None:
        self.partitions += 1
        self.files += len(certificate.files or [])
        self.rows += certificate.row_count
        self.bytes += certificate.byte_count
        self.problems += problems
        if certificate.verified is not None:
            key = {"partition_key": certificate.partition_key}
            self.rejected += [key | item.model_dump() for item in certificate.verified.rejected]


class FileSource(Protocol):
    """Where the files of partitions are."""

    def open(self, certificate: Certificate, name: str) -> AbstractContextManager[Any]:
        """Open a file for random access. Raises FileNotFoundError or OSError."""
        ...

    def list_names(self, certificate: Certificate) -> set[str] | None:
        """The names of the files of a partition; None if they cannot be listed by partition."""
        ...


@dataclass(frozen=True)
class StoredFiles:
    """The files in the object store of a stack."""

    store: ObjectStore

    def open(self, certificate: Certificate, name: str) -> AbstractContextManager[Any]:
        assert isinstance(certificate, StoredCertificate)
        try:
            return self.store.open_input(
                object_key(self.store, StorageRef(**certificate.storage_ref), name)
            )
        except ObjectMissing as error:
            raise FileNotFoundError(name) from error
        except StorageError as error:
            raise OSError(str(error)) from error

    def list_names(self, certificate: Certificate) -> set[str] | None:
        assert isinstance(certificate, StoredCertificate)
        ref = StorageRef(**certificate.storage_ref)
        try:
            found = list(self.store.list(f"{ref.bucket}/{ref.prefix}"))
        except StorageError as error:
            raise OSError(str(error)) from error
        return {item.key.rpartition("/")[2] for item in found} - {SUCCESS_MARKER}


class CopiedFiles:
    """A copy of the files below a directory. Files are found by name: it names output and blocks."""

    def __init__(self, directory: Path) -> None:
        self._paths: dict[str, list[Path]] = {}
        for path in sorted(directory.rglob("*.parquet")):
            self._paths.setdefault(path.name, []).append(path)

    def open(self, certificate: Certificate, name: str) -> AbstractContextManager[Any]:
        if name not in self._paths:
            raise FileNotFoundError(name)
        return pa.OSFile(str(self._paths[name][0]), "rb")

    def list_names(self, certificate: Certificate) -> set[str] | None:
        return None

    def list_additional(self, certificates: Sequence[Certificate]) -> list[Problem]:
        """Report the files that no certificate lists."""
        known = {file.name for item in certificates for file in item.files or []}
        additional = [
            path
            for name, paths in self._paths.items()
            for path in (paths[1:] if name in known else paths)
        ]
        return [
            Problem(None, "file", f"{path}: the manifest does not list it") for path in additional
        ]


def check_coverage(
    certificates: Sequence[Certificate], blocks: Range | None = None
) -> list[Problem]:
    """Report blocks without a partition, between the first and the last or in the given range.

    A dataset without partitions proves nothing: its rows are in a Postgres table, or nothing was
    committed yet.
    """
    if not certificates and blocks is None:
        text = (
            "has no partition to verify: nothing was committed, or its rows are in a Postgres table"
        )
        return [Problem(None, "coverage", text)]
    spans = sorted(
        (c.start, c.end) for c in certificates if c.start is not None and c.end is not None
    )
    if blocks is not None:
        spans = [(blocks.start - 1, blocks.start - 1), *spans, (blocks.end + 1, blocks.end + 1)]
    problems: list[Problem] = []
    reached: int | None = None
    for start, end in spans:
        if reached is not None and start > reached + 1:
            problems.append(
                Problem(None, "coverage", f"blocks {reached + 1}-{start - 1} have no partition")
            )
        reached = end if reached is None else max(reached, end)
    return problems


def check_links(certificates: Sequence[Certificate]) -> list[Problem]:
    """Report neighbours where the later one does not begin with the child of the earlier one's end."""
    linked = sorted((c for c in certificates if c.verified), key=lambda c: c.start or 0)
    problems: list[Problem] = []
    for before, after in pairwise(linked):
        assert before.verified is not None and after.verified is not None
        if before.verified.end + 1 != after.verified.start:
            continue
        expected, found = before.verified.last_hash, after.verified.first_parent_hash
        if expected != found:
            problems.append(
                Problem(
                    after.partition_key,
                    "link",
                    f"block {after.verified.start}, parentHash: expected {expected}, the last block of "
                    f"partition {before.partition_key}; the certificate has {found}",
                )
            )
    return problems


def check_files(certificate: Certificate, source: FileSource) -> list[Problem]:
    """Compare the files of a partition with its certificate, byte by byte and row by row."""
    return [
        Problem(certificate.partition_key, *found) for found in _check_files(certificate, source)
    ]


def _check_files(certificate: Certificate, source: FileSource) -> Iterator[tuple[str, str]]:
    if certificate.files is None or any(file.sha256 is None for file in certificate.files):
        yield "certificate", "the partition was written without hashes; rebuild it to certify it"
        return
    try:
        names = source.list_names(certificate)
    except OSError as error:
        yield "file", f"cannot list the files: {error}"
        return
    for name in sorted((names or set()) - {file.name for file in certificate.files}):
        yield "file", f"{name}: the certificate does not list it"
    hasher: RowHasher | None = None
    is_readable = True
    for file in certificate.files:
        try:
            with source.open(certificate, file.name) as opened:
                if problem := _compare_bytes(file, opened):
                    yield "file", f"{file.name}: {problem}"
                if certificate.content_hash is not None:
                    hasher = _hash_file(opened, hasher)
        except FileNotFoundError:
            yield "file", f"{file.name}: the file is missing"
            is_readable = False
        except (OSError, pa.ArrowException, UnknownType) as error:
            yield "file", f"{file.name}: cannot be read: {error}"
            is_readable = False
    if certificate.content_hash is not None and hasher is not None and is_readable:
        found = hasher.finish()
        if (found.rows, found.content_hash) != (certificate.row_count, certificate.content_hash):
            yield (
                "rows",
                f"expected {certificate.row_count} rows with {certificate.content_hash}, the files "
                f"have {found.rows} rows with {found.content_hash}",
            )


def _compare_bytes(file: SuccessFile, opened: Any) -> str | None:
    size = opened.size()
    if size != file.bytes:
        return f"expected {file.bytes} bytes, the file has {size}"
    digest = hashlib.sha256()
    while chunk := opened.read(_CHUNK_BYTES):
        digest.update(chunk)
    if digest.hexdigest() != file.sha256:
        return f"expected SHA-256 {file.sha256}, the file has {digest.hexdigest()}"
    return None


def _hash_file(opened: Any, hasher: RowHasher | None) -> RowHasher:
    opened.seek(0)
    parquet = pq.ParquetFile(opened)
    hasher = hasher or RowHasher(parquet.schema_arrow)
    for batch in parquet.iter_batches(batch_size=20_000):
        hasher.add(batch)
    return hasher
