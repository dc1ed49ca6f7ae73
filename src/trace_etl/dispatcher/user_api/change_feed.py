"""Following the stream of changes: who listens in this replica, and what wakes them.

Nothing is kept for a listener but its position. A listener reads a page from Postgres when it can
send one; one that cannot keep up reads later, or is dropped, and costs no memory meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from trace_etl.model.errors import Unavailable
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool
from trace_etl.state.feed import changes
from trace_etl.state.feed.changes import ChangePosition, Reading

_log = structlog.stdlib.get_logger()
PAGE = 200


@dataclass(frozen=True)
class ChangeFilter:
    """Which changes a listener receives. None matches every change."""

    org_id: UUID
    dag: str | None = None
    kinds: list[str] | None = None


@dataclass
class _Org:
    """The listeners of one org share one look-out."""

    lookout: asyncio.Task[None] | None = None
    listeners: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class ChangeFeed:
    """The listeners of this replica. Every org with any is looked at a few times a second."""

    def __init__(self, pool: Pool, *, every: float, most: int) -> None:
        self._pool = pool
        self._every = every
        self._most = most
        self._orgs: dict[UUID, _Org] = {}
        self._closed = asyncio.Event()

    @property
    def listeners(self) -> int:
        return sum(org.listeners for org in self._orgs.values())

    def close(self) -> None:
        """End every stream: the process is about to stop."""
        self._closed.set()
        for org in self._orgs.values():
            org.news.set()

    async def head(self) -> tuple[ChangePosition, int]:
        """The end of the stream, and the transaction up to which parts of it were forgotten."""
        async with self._pool.connection() as conn:
            return await changes.head(conn)

    def check_room(self) -> None:
        """Raise Unavailable when as many listen as may."""
        if self.listeners >= self._most:
            raise Unavailable("too many clients follow changes already; try again")

    @asynccontextmanager
    async def listening(self, which: ChangeFilter) -> AsyncGenerator[None]:
        """Count a listener, while the block lasts."""
        org = self._orgs.setdefault(which.org_id, _Org())
        org.listeners += 1
        if org.lookout is None:
            org.lookout = asyncio.create_task(self._look_out(which.org_id, org))
        try:
            yield
        finally:
            org.listeners -= 1
            if not org.listeners:
                org.lookout.cancel()
                del self._orgs[which.org_id]

    async def pages(
        self, which: ChangeFilter, after: ChangePosition, *, patience: float
    ) -> AsyncGenerator[Reading | None]:
        """Pages of changes until the feed is closed, and None every `patience` seconds."""
        org, clock = self._orgs[which.org_id], asyncio.get_running_loop().time
        due = clock() + patience
        while not self._closed.is_set():
            news = org.news  # before reading: what comes while reading sets this very one
            reading = await self._read_if_possible(which, after)
            after = reading.position
            if reading.changes:
                yield reading
            if clock() >= due:
                yield None
                due = clock() + patience
            if len(reading.changes) < PAGE:
                await _wait(news, due - clock())

    async def _read_if_possible(self, which: ChangeFilter, after: ChangePosition) -> Reading:
        try:
            return await self._read(which, after)
        except CONNECTION_ERRORS as error:
            # The stream outlives a restart of Postgres: the next look finds what this one missed.
            _log.warning("state_unavailable", part="changes", error=repr(error))
            return Reading([], after)

    async def _read(self, which: ChangeFilter, after: ChangePosition, limit: int = PAGE) -> Reading:
        async with self._pool.connection() as conn:
            return await changes.read(
                conn, which.org_id, after, dag=which.dag, kinds=which.kinds, limit=limit
            )

    async def _look_out(self, org_id: UUID, org: _Org) -> None:
        tail: ChangePosition | None = None
        while True:
            try:
                end, _ = await self.head()
                found = tail is None or bool(
                    (await self._read(ChangeFilter(org_id), tail, 1)).changes
                )
                tail = end
            except CONNECTION_ERRORS as error:
                _log.warning("state_unavailable", part="changes", error=repr(error))
                found = False
            if found:
                org.news.set()
                org.news = asyncio.Event()
            await asyncio.sleep(self._every)


async def _wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await news.wait()
    except TimeoutError:
        return
