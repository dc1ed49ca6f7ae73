"""Serve the change stream to the clients of this replica.

The feed keeps only the position of a client in memory. It reads a page from Postgres only when the
client can receive one. A slow client gets its pages later, or is disconnected.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from trace_etl.model.errors import TooManyRequests, Unavailable
from trace_etl.process import wait_for
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool
from trace_etl.state.feed import changes
from trace_etl.state.feed.changes import ChangePage, ChangePosition

_log = structlog.stdlib.get_logger()
PAGE = 200


@dataclass(frozen=True)
class ChangeFilter:
    """Which changes a client receives. None matches every change."""

    org_id: UUID
    dag: str | None = None
    kinds: list[str] | None = None


@dataclass
class _OrgListeners:
    """The clients of one org. They share one poller."""

    poller: asyncio.Task[None] | None = None
    listeners: Counter[str] = field(default_factory=Counter[str])
    """The number of clients of each user."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class ChangeFeed:
    """The clients of this replica. Polls each org that has clients several times per second."""

    def __init__(
        self, pool: Pool, *, poll_interval: float, max_listeners: int, max_per_user: int
    ) -> None:
        self._pool = pool
        self._poll_interval = poll_interval
        self._max_listeners = max_listeners
        self._max_per_user = max_per_user
        self._orgs: dict[UUID, _OrgListeners] = {}
        self._closed = asyncio.Event()

    @property
    def listeners(self) -> int:
        return sum(org.listeners.total() for org in self._orgs.values())

    def close(self) -> None:
        """End every stream. Called when the process stops."""
        self._closed.set()
        for org in self._orgs.values():
            org.changed.set()

    async def head(self) -> tuple[ChangePosition, int]:
        """Return the end of the stream, and the transaction up to which changes were deleted."""
        async with self._pool.connection() as conn:
            return await changes.head(conn)

    def join(self, org_id: UUID, user: str) -> Callable[[], None]:
        """Count a client and poll for its org, until the returned function is called.

        Raises TooManyRequests or Unavailable if another client is too many.
        """
        org = self._orgs.get(org_id, _OrgListeners())
        if org.listeners[user] >= self._max_per_user:
            raise TooManyRequests(
                f"you follow the change stream {self._max_per_user} times, the maximum for one user"
                " (TRACE_CHANGES_CLIENTS_PER_USER); end one of these streams"
            )
        if self.listeners >= self._max_listeners:
            raise Unavailable(
                f"{self._max_listeners} clients follow the change stream, the maximum that one Dispatcher"
                " serves (TRACE_CHANGES_CLIENTS); try again later"
            )
        self._orgs[org_id] = org
        org.listeners[user] += 1
        org.poller = org.poller or asyncio.create_task(self._poll(org_id, org))
        return lambda: self._remove_listener(org_id, user)

    def _remove_listener(self, org_id: UUID, user: str) -> None:
        org = self._orgs[org_id]
        org.listeners[user] -= 1
        if not org.listeners[user]:
            del org.listeners[user]
        if not org.listeners and org.poller is not None:
            org.poller.cancel()
            del self._orgs[org_id]

    async def pages(
        self, filters: ChangeFilter, after: ChangePosition, *, heartbeat: float
    ) -> AsyncGenerator[ChangePage | None]:
        """Yield pages of changes until the feed is closed, and None every `heartbeat` seconds."""
        org, clock = self._orgs.get(filters.org_id), asyncio.get_running_loop().time
        if org is None:
            return  # the client left before its first page
        due = clock() + heartbeat
        while not self._closed.is_set():
            changed = org.changed  # taken before reading, so that a change during the read is seen
            page = await self._read_if_possible(filters, after)
            after = page.position
            if page.changes:
                yield page
            if clock() >= due:
                yield None
                due = clock() + heartbeat
            if len(page.changes) < PAGE:
                await wait_for(changed, due - clock())

    async def _read_if_possible(self, filters: ChangeFilter, after: ChangePosition) -> ChangePage:
        try:
            return await self._read(filters, after)
        except CONNECTION_ERRORS as error:
            # The stream continues after a restart of Postgres: the next read returns the missed changes.
            _log.warning("state_unavailable", part="changes", error=repr(error))
            return ChangePage([], after)

    async def _read(
        self, filters: ChangeFilter, after: ChangePosition, limit: int = PAGE
    ) -> ChangePage:
        async with self._pool.connection() as conn:
            return await changes.read(
                conn, filters.org_id, after, dag=filters.dag, kinds=filters.kinds, limit=limit
            )

    async def _poll(self, org_id: UUID, org: _OrgListeners) -> None:
        tail: ChangePosition | None = None
        while True:
            try:
                end, _ = await self.head()
                has_changes = tail is None or bool(
                    (await self._read(ChangeFilter(org_id), tail, 1)).changes
                )
                tail = end
            except CONNECTION_ERRORS as error:
                _log.warning("state_unavailable", part="changes", error=repr(error))
                has_changes = False
            if has_changes:
                org.changed.set()
                org.changed = asyncio.Event()
            await asyncio.sleep(self._poll_interval)
