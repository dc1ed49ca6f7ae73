"""manifest.json: what a backup contains, with the size and the SHA-256 of every file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from pydantic import TypeAdapter

from trace_etl.lite.errors import BackupUnusable

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One file of a backup."""

    name: str
    size: int
    sha256: str
    is_executable: bool = False


@dataclass(frozen=True)
class DatasetSummary:
    """One generation of a dataset as of the snapshot."""

    org_id: str
    dataset: str
    dataset_version: str
    is_current: bool
    partitions: int
    rows: int
    bytes: int
    digest: str
    """Changes if a partition, its range, its rows or its place changes."""


@dataclass(frozen=True)
class TableSummary:
    """One table of Postgres data as of the snapshot."""

    table: str
    rows: int
    digest: str


@dataclass(frozen=True)
class BackupManifest:
    """The content of manifest.json."""

    release: str
    created_at: str
    home_id: str
    postgres_major: int
    migrations: Sequence[str]
    objects_url: str | None
    """The object store of the original. None: a directory of its home."""
    has_secrets: bool
    datasets: Sequence[DatasetSummary]
    tables: Sequence[TableSummary]
    directories: Sequence[str]
    """Directories of Postgres, because some of them are empty."""
    files: Sequence[Entry] = field(default_factory=list[Entry])
    format: int = FORMAT

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(entry.size for entry in self.files)

    def objects(self) -> list[Entry]:
        """Return the files that are objects of datasets."""
        return [entry for entry in self.files if entry.name.startswith("objects/")]

    def to_json(self) -> bytes:
        """Encode the manifest."""
        return json.dumps(asdict(self), indent=1).encode()


_MANIFEST = TypeAdapter(BackupManifest)


def parse(content: bytes, where: str) -> BackupManifest:
    """Decode a manifest. Raises BackupUnusable."""
    try:
        found = int(json.loads(content)["format"])
        if found <= FORMAT:
            return _MANIFEST.validate_json(content)
    except (ValueError, KeyError, TypeError) as error:
        raise BackupUnusable(
            f"{where}: {NAME} is damaged ({error})", "use another backup"
        ) from None
    raise BackupUnusable(
        f"{where} has format {found}; this release reads formats up to {FORMAT}",
        "restore it with the release that made it, or a newer one",
    )
