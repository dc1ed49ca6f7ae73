"""List the store slowly, one area at a time, to find objects that no row refers to.

Foreign objects, which are not under the prefix of an attempt, are counted and never deleted.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import structlog

from trace_etl.model.storage import key_of_url, split_attempt_key
from trace_etl.objects.store import ObjectInfo, ObjectStore
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.storage import listings, unused_prefixes
from trace_etl.state.storage.listings import AreaTotals, AttemptObjects, StorageArea

_HOLD = timedelta(hours=1)
_CHUNK = 1000
_log = structlog.stdlib.get_logger()
AttemptKey = tuple[UUID, int]


@dataclass
class _Listing:
    """The objects of an area, by attempt."""

    attempts: dict[AttemptKey, list[ObjectInfo]] = field(
        default_factory=lambda: defaultdict[AttemptKey, list[ObjectInfo]](list)
    )
    foreign: list[int] = field(default_factory=list[int])
    """Sizes of objects that are not under the prefix of an attempt."""

    def totals(self) -> AreaTotals:
        sizes = [entry.size for entries in self.attempts.values() for entry in entries]
        return AreaTotals(
            objects=len(sizes) + len(self.foreign),
            bytes=sum(sizes) + sum(self.foreign),
            foreign_objects=len(self.foreign),
            foreign_bytes=sum(self.foreign),
        )


@dataclass(frozen=True)
class StorageLister:
    pool: Pool
    store: ObjectStore
    interval: timedelta

    async def list_once(self) -> int:
        """List one area whose last listing is too old. Returns 0 if there is none."""
        async with transaction(self.pool) as conn:
            area = await listings.take_due(conn, interval=self.interval, hold=_HOLD)
        if area is None:
            return 0
        found = await asyncio.to_thread(self._list_area, area)
        new = 0
        attempts = list(found.attempts.items())
        for start in range(0, len(attempts), _CHUNK):
            new += await self._register(area, dict(attempts[start : start + _CHUNK]))
        async with transaction(self.pool) as conn:
            await listings.finish(conn, area, found.totals())
        if new:
            _log.info("unused_prefixes_found", area=area.prefix, prefixes=new)
        return 1

    def _list_area(self, area: StorageArea) -> _Listing:
        listing, start = _Listing(), f"{self.store.org_root(area.org_id)}/{area.prefix}"
        for entry in self.store.list(start):
            attempt = split_attempt_key(entry.key.removeprefix(start))
            if attempt is None:
                listing.foreign.append(entry.size)
            else:
                listing.attempts[attempt].append(entry)
        return listing

    async def _register(
        self, area: StorageArea, attempts: dict[AttemptKey, list[ObjectInfo]]
    ) -> int:
        async with transaction(self.pool) as conn:
            published = frozenset[str]()
            if area.area == "buffers":
                tasks = [task_id for task_id, _ in attempts]
                uris = await unused_prefixes.list_published_batches(conn, tasks)
                published = frozenset(map(key_of_url, uris))
            found = [
                AttemptObjects(task_id, attempt, len(unused), sum(entry.size for entry in unused))
                for (task_id, attempt), entries in attempts.items()
                if (unused := [entry for entry in entries if entry.key not in published])
            ]
            return await listings.register(conn, area, found) if found else 0
