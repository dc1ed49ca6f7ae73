"""What a query reads: the partitions committed at its start, and the files they consist of."""

import difflib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trace_etl.model.errors import Invalid
from trace_etl.model.storage import StorageRef, hot_table
from trace_etl.objects.markers import read_marker
from trace_etl.objects.store import ObjectStore, object_key
from trace_etl.query.sql_guard import Admitted, Mention
from trace_etl.state.catalog import datasets
from trace_etl.state.catalog.datasets import PublishedDataset
from trace_etl.state.db.pool import Conn, Pool
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.partitions import partition_queries as partitions
from trace_etl.state.partitions.partition_queries import Partition

_REMEMBERED = 100_000


@dataclass(frozen=True)
class Pin:
    """One dataset as of the query's start."""

    name: str
    dataset_version: UUID
    partitions: tuple[Partition, ...]
    table: str | None = None
    """Where its rows are in Postgres data, if anywhere, when no partition is committed."""

    @property
    def columns(self) -> list[dict[str, str]]:
        """What the newest partition said its columns are."""
        return self.partitions[-1].columns if self.partitions else []


async def pin(pool: Pool, org_id: UUID, query: Admitted) -> list[Pin]:
    """Pin every dataset the query names, in one snapshot. Raises Invalid for unknown names."""
    async with snapshot(pool) as conn:
        found = await datasets.list_published(conn, org_id, query.names)
        unknown = _unknown(query, {d.name for d in found})
        if unknown:
            known = await datasets.list_published_names(conn, org_id)
            raise Invalid([m.fault(_no_such_dataset(m.name, known)) for m in unknown])
        return [await _pin(conn, d) for d in found]


async def _pin(conn: Conn, dataset: PublishedDataset) -> Pin:
    found = tuple(await partitions.list_all_partitions(conn, dataset.dataset_version))
    table = None if found else hot_table(dataset.dataset_uuid, dataset.dataset_version)
    return Pin(dataset.name, dataset.dataset_version, found, table)


def _unknown(query: Admitted, published: set[str]) -> list[Mention]:
    return [m for m in query.tables if m.name not in published | query.own]


def _no_such_dataset(name: str, known: list[str]) -> str:
    what = f"no dataset {name!r} is published"
    if not known:
        return f"{what}; none is, yet: deploy a DAG with a `publish` section"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{what}; did you mean {close[0]!r}?" if close else f"{what}; there are {_few(known)}"


def _few(names: list[str], most: int = 10) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


class Files:
    """The files behind pins, by the markers of their prefixes.

    A committed prefix never changes, so its marker is read once.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: OrderedDict[StorageRef, tuple[tuple[str, int], ...]] = OrderedDict()

    def of(self, pin: Pin) -> list[str]:
        """URIs of the files of a pin; files without rows only if there are no others."""
        listed = [entry for p in pin.partitions for entry in self._listed(p.storage_ref)]
        return [uri for uri, rows in listed if rows] or [uri for uri, _ in listed]

    def _listed(self, storage_ref: dict[str, Any]) -> tuple[tuple[str, int], ...]:
        ref = StorageRef(**storage_ref)
        known = self._known.get(ref)
        if known is None:
            known = self._known[ref] = self._read(ref)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _read(self, ref: StorageRef) -> tuple[tuple[str, int], ...]:
        store = self._store
        return tuple(
            (store.uri(object_key(store, ref, file.name)), file.rows)
            for file in read_marker(store, ref).files
        )
