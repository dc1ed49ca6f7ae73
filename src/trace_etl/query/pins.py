"""Pin what a query reads: the partitions committed at its start, and their files."""

import difflib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trace_etl.model.errors import Invalid
from trace_etl.model.storage import StorageRef, hot_table
from trace_etl.objects.markers import read_marker
from trace_etl.objects.store import ObjectStore, object_key
from trace_etl.query.requests import TableReference
from trace_etl.state.catalog import datasets
from trace_etl.state.catalog.datasets import PublishedDataset
from trace_etl.state.db.pool import Conn, Pool
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.partitions import partition_queries as partitions
from trace_etl.state.partitions.partition_queries import Partition

_MAX_CACHED_PREFIXES = 100_000


@dataclass(frozen=True)
class Pin:
    """One dataset as of the query's start."""

    name: str
    dataset_version: UUID
    partitions: tuple[Partition, ...]
    table: str | None = None
    """The table in Postgres data that may hold its rows. None if partitions are committed."""

    @property
    def columns(self) -> list[dict[str, str]]:
        """The columns of the newest partition."""
        return self.partitions[-1].columns if self.partitions else []


async def pin_datasets(pool: Pool, org_id: UUID, tables: list[TableReference]) -> list[Pin]:
    """Pin every dataset that a query names, in one snapshot. Raises Invalid for unknown names."""
    async with snapshot(pool) as conn:
        found = await datasets.list_published(conn, org_id, sorted({t.name for t in tables}))
        published = {d.name for d in found}
        unknown = [table for table in tables if table.name not in published]
        if unknown:
            known = await datasets.list_published_names(conn, org_id)
            raise Invalid([table.fault(_explain_unknown(table.name, known)) for table in unknown])
        return [await _pin_dataset(conn, d) for d in found]


async def _pin_dataset(conn: Conn, dataset: PublishedDataset) -> Pin:
    found = tuple(await partitions.list_all_partitions(conn, dataset.dataset_version))
    table = None if found else hot_table(dataset.dataset_uuid, dataset.dataset_version)
    return Pin(dataset.name, dataset.dataset_version, found, table)


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


class PinnedFiles:
    """Lists the files of pins from the success markers of their prefixes.

    A committed prefix never changes, so its marker is read only once.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._cache: OrderedDict[StorageRef, tuple[tuple[str, int], ...]] = OrderedDict()

    def list_uris(self, pin: Pin) -> list[str]:
        """List the URIs of a pin's files. Files without rows are listed only if all are empty."""
        files = [file for p in pin.partitions for file in self._list_files(p.storage_ref)]
        return [uri for uri, rows in files if rows] or [uri for uri, _ in files]

    def _list_files(self, storage_ref: dict[str, Any]) -> tuple[tuple[str, int], ...]:
        ref = StorageRef(**storage_ref)
        files = self._cache.get(ref)
        if files is None:
            files = self._cache[ref] = self._read_marker(ref)
            if len(self._cache) > _MAX_CACHED_PREFIXES:
                self._cache.popitem(last=False)
        return files

    def _read_marker(self, ref: StorageRef) -> tuple[tuple[str, int], ...]:
        store = self._store
        return tuple(
            (store.uri(object_key(store, ref, file.name)), file.rows)
            for file in read_marker(store, ref).files
        )
