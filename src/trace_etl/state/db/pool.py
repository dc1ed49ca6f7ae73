"""Connection pools for Postgres state, and transactions on their connections."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import orjson
from psycopg import DataError, InterfaceError, OperationalError
from psycopg.errors import (
    DeadlockDetected,
    LockNotAvailable,
    SerializationFailure,
    UntranslatableCharacter,
)
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from trace_etl.model.errors import Fault, Invalid
from trace_etl.state.db.connection import Connection

Conn = Connection
Pool = AsyncConnectionPool[Conn]

# Errors that a retry may fix: broken or missing connections, deadlocks and serialisation failures.
CONNECTION_ERRORS = (OperationalError, InterfaceError, PoolTimeout)
# Two transactions conflicted: run the whole transaction again.
CONFLICT_ERRORS = (DeadlockDetected, LockNotAvailable, SerializationFailure)


# Every hot statement looks rows up by key or in a small partial index. The planner does not know how
# short the arrays are, so table scans are switched off, and each statement is planned only once. The
# lock timeout limits how long callers wait for one locked row.
HOT_OPTIONS = (
    "-c plan_cache_mode=force_generic_plan -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_seqscan=off -c lock_timeout=10s"
)


async def forbid_table_scans(conn: Conn) -> None:
    """Keep this transaction from scanning whole tables.

    If ANALYZE saw partitions of one generation only, the planner expects as many in every generation,
    and scans the table once for each consumer of a DAG.
    """
    await conn.execute("SELECT set_config('enable_seqscan', 'off', true)")


def rows_as_json(rows: Sequence[dict[str, Any] | str]) -> str:
    """Encode rows as one parameter for `json_to_recordset`. Cheaper than one array per column."""
    return orjson.dumps(rows).decode()


async def _configure(conn: Conn) -> None:
    conn.prepare_threshold = 0  # the statements are few and constant: plan each one once
    await conn.set_autocommit(True)


class CheckedPool(AsyncConnectionPool[Conn]):
    """A pool that checks every connection before the caller gets it.

    psycopg's `check` option backs off between broken connections. A Postgres restart breaks all idle
    connections together, so this pool checks and replaces all of them after the first broken one.
    """

    async def getconn(self, timeout: float | None = None) -> Conn:  # noqa: ASYNC109 - inherited
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            conn = await super().getconn(deadline - time.monotonic())
            try:
                await self.check_connection(conn)
            except CONNECTION_ERRORS:
                await self.putconn(conn)  # the pool replaces the broken connection
                await self.check()
            except BaseException:
                await self.putconn(conn)  # the caller was cancelled
                raise
            else:
                return conn


def make_pool(
    dsn: str, *, size: int, checked: bool = True, hot: bool = False, options: str = ""
) -> Pool:
    """Create a pool, not yet open. With `checked`, broken connections are replaced before use.

    Background loops use an unchecked pool: they retry on their next pass instead of paying a round
    trip on every pass. `options` are settings of each session; `hot` applies `HOT_OPTIONS`.
    """
    settings = f"{HOT_OPTIONS if hot else ''} {options}".strip()
    kind = cast("type[Pool]", CheckedPool if checked else AsyncConnectionPool)
    return kind(
        dsn,
        connection_class=Connection,
        kwargs={"options": settings} if settings else None,
        min_size=min(2, size),
        max_size=size,
        open=False,
        configure=_configure,
        reconnect_timeout=float("inf"),
        timeout=10.0,
        name="state",
    )


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncGenerator[Conn]:
    """Open a transaction. It commits at the end of the block and rolls back on any error.

    Raises Invalid for a text with the NUL character, which Postgres cannot store.
    """
    async with single_statements(pool) as conn, conn.transaction():
        yield conn


@asynccontextmanager
async def single_statements(pool: Pool) -> AsyncGenerator[Conn]:
    """Take a connection on which each statement is a transaction, which saves two round trips.

    Raises Invalid like `transaction`.
    """
    with refuse_nul():
        async with pool.connection() as conn:
            yield conn


@contextmanager
def refuse_nul() -> Generator[None]:
    """Raise Invalid for a text with the NUL character."""
    try:
        yield
    except DataError as error:
        if isinstance(error, UntranslatableCharacter) or "NUL" in str(error):
            raise Invalid(
                [Fault("body", "a text contains the NUL character; remove it")]
            ) from error
        raise


_T = TypeVar("_T")


async def transact(pool: Pool, step: Callable[[Conn], Awaitable[_T]], *, tries: int = 3) -> _T:
    """Run a step in its own transaction. Retries if the transaction conflicts with another."""
    while True:
        tries -= 1
        try:
            async with transaction(pool) as conn:
                return await step(conn)
        except CONFLICT_ERRORS:
            if not tries:
                raise


class ReusedConnections:
    """Connections that stay checked out of the pool between uses, up to `max_idle` of them.

    Checking a connection out costs as much as a small statement. A Postgres restart breaks the idle
    connections too, so the first broken connection closes all of them. The pool should be `checked`.
    """

    def __init__(self, pool: Pool, *, max_idle: int = 8) -> None:
        self._pool = pool
        self._max_idle = max_idle
        self._idle: list[Conn] = []

    async def use(self, step: Callable[[Conn], Awaitable[_T]]) -> _T:
        """Run a step on a connection that no other caller uses meanwhile."""
        conn = self._idle.pop() if self._idle else await self._pool.getconn()
        try:
            result = await step(conn)
        except BaseException as error:
            if isinstance(error, CONNECTION_ERRORS) and not isinstance(error, CONFLICT_ERRORS):
                self._idle.append(conn)
                await self._close_idle()
            else:
                await self._pool.putconn(conn)
            raise
        if len(self._idle) < self._max_idle:
            self._idle.append(conn)
        else:
            await self._pool.putconn(conn)
        return result

    async def _close_idle(self) -> None:
        """Close the idle connections, because the pool would accept them back as working."""
        while self._idle:
            conn = self._idle.pop()
            await conn.close()
            await self._pool.putconn(conn)

    async def close(self) -> None:
        """Return the idle connections to the pool."""
        while self._idle:
            await self._pool.putconn(self._idle.pop())


class StateReader:
    """Runs single statements on at most `connections` of a checked pool, without checking each time."""

    def __init__(self, pool: Pool, connections: int) -> None:
        self._kept = ReusedConnections(pool, max_idle=connections)
        self._free = asyncio.Semaphore(connections)

    async def read(self, step: Callable[[Conn], Awaitable[_T]]) -> _T:
        """Run a step that changes nothing. It is repeated if its connection turns out to be broken."""
        async with self._free:
            with refuse_nul():
                try:
                    return await self._kept.use(step)
                except CONNECTION_ERRORS:  # all kept connections are closed now
                    return await self._kept.use(step)

    async def close(self) -> None:
        await self._kept.close()


@asynccontextmanager
async def open_reader(pool: Pool, connections: int) -> AsyncGenerator[StateReader]:
    """Keep connections of an open pool until the end of the block."""
    reader = StateReader(pool, connections)
    try:
        yield reader
    finally:
        await reader.close()
