"""Pin what a query reads: the partitions committed at its start, and their files."""

import difflib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from trace_etl.dag.checks.publications import CHANGES
from trace_etl.model.errors import Fault, Forbidden, Invalid
from trace_etl.model.roles import may_read
from trace_etl.model.storage import PARQUET, StorageRef, hot_table
from trace_etl.objects.markers import read_marker
from trace_etl.objects.store import ObjectStore, object_key
from trace_etl.query.requests import DatasetView, TableReference
from trace_etl.state.catalog import datasets
from trace_etl.state.catalog.datasets import PublishedDataset
from trace_etl.state.db.pool import Conn, StateReader
from trace_etl.state.db.snapshots import read_snapshot
from trace_etl.state.feed import delivery_log

_MAX_CACHED_PREFIXES = 100_000
_FEW_PREFIXES = 32
_MAX_CHANGES = 100_000  # about 60 MB while they are sent to a query process


@dataclass(frozen=True)
class Pin:
    """One dataset as of the query's start, under one name."""

    name: str
    dataset_version: UUID
    storage_refs: tuple[StorageRef, ...]
    """The prefixes of its committed partitions."""
    columns: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The columns of the newest partition; empty if its marker must be read for them."""
    table: str | None = None
    """The table in Postgres data with its rows, or with its newest rows. It may not exist."""
    covered_blocks: list[tuple[int, int]] | None = None
    """For a dataset with a hot part, the blocks of its partitions. The table has other blocks too."""
    rows: list[list[Any]] | None = None
    """The rows of the delivery log, which the Query Service reads itself. None for a dataset."""
    where: dict[str, Any] | None = None
    """The filter of an input: AND over its columns; a list means IN."""

    def describe(self) -> dict[str, Any]:
        """Return what the caller learns about the pin: a `PinnedDataset`."""
        return {
            "dataset": self.name,
            "dataset_version": self.dataset_version,
            "partitions": len(self.storage_refs),
        }


def join_ranges(blocks: Iterable[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    """Return the ranges of blocks of partitions, as few as possible. Partitions do not overlap."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted((s, e) for s, e in blocks if s is not None and e is not None):
        if ranges and start == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


async def pin_datasets(
    state: StateReader, org_id: UUID, user: str, tables: list[TableReference]
) -> list[Pin]:
    """Pin every dataset that a user's query names, at one moment. Raises Invalid, Forbidden."""

    async def pin(conn: Conn) -> list[Pin]:
        return await _pin_all(conn, org_id, user, tables)

    async def pin_with_log(conn: Conn) -> list[Pin]:
        async with read_snapshot(conn):
            return await pin(conn)

    # Datasets are pinned by one statement; the log is read by another one.
    has_log = any(table.name == CHANGES for table in tables)
    return await state.read(pin_with_log if has_log else pin)


async def _pin_all(conn: Conn, org_id: UUID, user: str, tables: list[TableReference]) -> list[Pin]:
    names = sorted({t.name for t in tables})
    role, found = await datasets.list_published(conn, org_id, user, names)
    role = require_role(user, role)
    published = {d.name for d in found}
    logs = [t for t in tables if t.name == CHANGES and t.name not in published]
    unknown = [t for t in tables if t.name not in published and t not in logs]
    if unknown:
        known = await datasets.list_published_names(conn, org_id)
        raise Invalid([table.fault(_explain_unknown(table.name, known)) for table in unknown])
    _require_readable(found, role)
    pins = [_make_pin(d) for d in found]
    return pins + ([await _pin_changes(conn, org_id, role, logs[0])] if logs else [])


def require_role(user: str, role: str | None) -> str:
    """Return the role of a user. Raises Forbidden for one without."""
    if role is None:
        raise Forbidden(f"user {user!r} is unknown or disabled; ask an admin")
    return role


def _require_readable(found: list[PublishedDataset], role: str) -> None:
    """Raise Forbidden if the role may not read all datasets. Names are not secret, rows are."""
    refused = [d for d in found if not may_read(role, d.read_roles)]
    if refused:
        raise Forbidden(
            f"your role is {role}, which may not read "
            + "; ".join(
                f"{d.name!r} (read_roles: {', '.join(d.read_roles or ())})" for d in refused
            )
            + "; ask an admin for another role"
        )


def _make_pin(dataset: PublishedDataset) -> Pin:
    pin = Pin(
        dataset.name,
        dataset.dataset_version,
        tuple(StorageRef(**ref) for _, _, ref in dataset.partitions),
        dataset.columns or [],
    )
    if dataset.hot_dataset_uuid is not None and dataset.hot_dataset_version is not None:
        table = hot_table(dataset.hot_dataset_uuid, dataset.hot_dataset_version)
        blocks = join_ranges((start, end) for start, end, _ in dataset.partitions)
        return replace(pin, table=table, covered_blocks=blocks)
    if not dataset.partitions:
        return replace(pin, table=hot_table(dataset.dataset_uuid, dataset.dataset_version))
    return pin


async def _pin_changes(conn: Conn, org_id: UUID, role: str, table: TableReference) -> Pin:
    """Pin the delivery log of all datasets that the role may read. Raises Invalid if it is too long."""
    roles = await datasets.list_read_roles(conn, org_id)
    readable = [name for name, read_roles in roles.items() if may_read(role, read_roles)]
    log = await delivery_log.list_changes(conn, org_id, readable, limit=_MAX_CHANGES + 1)
    if len(log.rows) > _MAX_CHANGES:
        rule = f"has more than {_MAX_CHANGES:,} changes, too many for a query"
        raise Invalid(
            [table.fault(f"{CHANGES} {rule}; `trace changes DATASET` reads all of one dataset")]
        )
    columns = [{"name": name, "type": kind} for name, kind in delivery_log.COLUMNS]
    return Pin(CHANGES, log.log_id, (), columns, rows=log.rows)


def _explain_unknown(name: str, known: list[str]) -> str:
    problem = f"no dataset {name!r} is published"
    if not known:
        return f"{problem}, and no other either; deploy a DAG with a `publish` section"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"{problem}; did you mean {close[0]!r}?"
    return f"{problem}; the published datasets are {_join_names(known)}"


def _join_names(names: list[str], limit: int = 10) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class _Prefix:
    """The contents of a committed prefix."""

    files: tuple[tuple[str, int], ...]
    """The key of each file, and its rows."""
    columns: list[dict[str, str]]


class PinnedFiles:
    """Lists the files of pins from the success markers of their prefixes.

    A committed prefix never changes, so its marker is read only once.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._cache: OrderedDict[StorageRef, _Prefix] = OrderedDict()

    @property
    def is_local(self) -> bool:
        """Whether the files are paths of this machine."""
        return self._store.scheme == "file"

    def has_few(self, pins: list[Pin]) -> bool:
        """Return whether the files of all pins are known, and in few prefixes."""
        refs = [ref for pin in pins for ref in pin.storage_refs]
        return len(refs) <= _FEW_PREFIXES and all(ref in self._cache for ref in refs)

    def make_view(self, pin: Pin, life: timedelta) -> DatasetView:
        """List addresses of a pin's files. Files without rows are listed only if all are empty.

        Raises Invalid for text files with different columns.
        """
        prefixes = [self._get(ref) for ref in pin.storage_refs]
        files = [file for prefix in prefixes for file in prefix.files]
        formats = {key.rpartition(".")[2] for key, _ in files} or {PARQUET}
        columns = pin.columns or (prefixes[-1].columns if prefixes else [])
        has_various = any(prefix.columns != prefixes[0].columns for prefix in prefixes)
        if len(formats) > 1 or (has_various and formats != {PARQUET}):
            rule = f"the text files of dataset {pin.name!r} have different columns"
            raise Invalid([Fault("sql", f"{rule}; name the columns in the SQL of its job")])
        if has_various:
            every = [column for prefix in prefixes for column in prefix.columns]
            columns = list({column["name"]: column for column in every}.values())
        keys = [key for key, rows in files if rows or has_various] or [key for key, _ in files]
        return DatasetView(
            pin.name,
            list(self._store.read_urls(keys, life=life)),
            columns,
            pin.table,
            pin.covered_blocks or [],
            pin.where or {},
            has_various,
            pin.rows,
            formats.pop(),
        )

    def _get(self, ref: StorageRef) -> _Prefix:
        prefix = self._cache.get(ref)
        if prefix is None:
            prefix = self._cache[ref] = self._read_marker(ref)
            if len(self._cache) > _MAX_CACHED_PREFIXES:
                self._cache.popitem(last=False)
        return prefix

    def _read_marker(self, ref: StorageRef) -> _Prefix:
        store, marker = self._store, read_marker(self._store, ref)
        files = tuple((object_key(store, ref, file.name), file.rows) for file in marker.files)
        return _Prefix(files, marker.schema_)
