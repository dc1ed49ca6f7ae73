"""Connections to Postgres state."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import orjson
from psycopg import InterfaceError, OperationalError
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from trace_etl.state.db.connection import Connection

Conn = Connection
Pool = AsyncConnectionPool[Conn]

# What a broken or missing connection looks like. Deadlocks and serialisation failures are among
# them: all are worth another try.
BROKEN = (OperationalError, InterfaceError, PoolTimeout)
# Two transactions stood in each other's way: the whole of it, once more.
CLASHED = (DeadlockDetected, LockNotAvailable, SerializationFailure)


# Every hot statement is a look-up by key or over a small partial index. The planner, which cannot
# see how short our arrays are, must not fall for a scan of the table, nor plan each call anew.
# Nor may one row that somebody holds keep many callers waiting for long.
HOT_OPTIONS = (
    "-c plan_cache_mode=force_generic_plan -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_seqscan=off -c lock_timeout=10s"
)


def rows_as_json(rows: Sequence[dict[str, Any] | str]) -> str:
    """Many rows as one parameter, for `json_to_recordset`: cheaper to send than an array each."""
    return orjson.dumps(rows).decode()


async def _configure(conn: Conn) -> None:
    conn.prepare_threshold = 0  # the statements are few and constant: plan each one once
    await conn.set_autocommit(True)


class CheckedPool(AsyncConnectionPool[Conn]):
    """Looks at a connection before it lends it.

    The pool's own `check` waits before it tries the next one, ever longer; but what broke one broke
    all that rest, and they are found out together.
    """

    async def getconn(self, timeout: float | None = None) -> Conn:  # noqa: ASYNC109 - inherited
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            conn = await super().getconn(deadline - time.monotonic())
            try:
                await self.check_connection(conn)
            except BROKEN:
                await self.putconn(conn)  # which replaces it
                await self.check()
            except BaseException:
                await self.putconn(conn)  # the caller went away
                raise
            else:
                return conn


def make_pool(dsn: str, *, size: int, checked: bool = True, hot: bool = False) -> Pool:
    """A pool, not open yet. `checked` replaces connections that a Postgres restart broke on loan.

    Loops go without: they come again instead of paying a round trip for every pass.
    """
    kind = cast("type[Pool]", CheckedPool if checked else AsyncConnectionPool)
    return kind(
        dsn,
        connection_class=Connection,
        kwargs={"options": HOT_OPTIONS} if hot else None,
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
    """A connection inside a transaction: committed at the end, rolled back on any error."""
    async with pool.connection() as conn, conn.transaction():
        yield conn


_T = TypeVar("_T")


async def transact(pool: Pool, step: Callable[[Conn], Awaitable[_T]], *, tries: int = 3) -> _T:
    """Run a step in a transaction of its own, and again if it clashed with another."""
    while True:
        tries -= 1
        try:
            async with transaction(pool) as conn:
                return await step(conn)
        except CLASHED:
            if not tries:
                raise


class KeptConnections:
    """Connections of a pool that stay out between uses: a loan costs as much as a small statement.

    A Postgres restart breaks those that rest as well: the first one that turns out to be broken
    has all of them replaced. The pool should be `checked`.
    """

    def __init__(self, pool: Pool, *, most: int = 8) -> None:
        self._pool = pool
        self._most = most
        self._resting: list[Conn] = []

    @property
    def resting(self) -> int:
        """How many are kept while nobody uses them."""
        return len(self._resting)

    async def use(self, step: Callable[[Conn], Awaitable[_T]]) -> _T:
        """Run a step on a connection that nobody else uses meanwhile."""
        conn = self._resting.pop() if self._resting else await self._pool.getconn()
        try:
            result = await step(conn)
        except BaseException as error:
            if isinstance(error, BROKEN) and not isinstance(error, CLASHED):
                self._resting.append(conn)
                await self._replace()
            else:
                await self._pool.putconn(conn)
            raise
        if len(self._resting) < self._most:
            self._resting.append(conn)
        else:
            await self._pool.putconn(conn)
        return result

    async def _replace(self) -> None:
        """Close what rests: the pool would take it for sound."""
        while self._resting:
            conn = self._resting.pop()
            await conn.close()
            await self._pool.putconn(conn)

    async def close(self) -> None:
        """Give back what rests."""
        while self._resting:
            await self._pool.putconn(self._resting.pop())
