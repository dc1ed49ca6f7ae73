"""Connections to Postgres state."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

Conn = AsyncConnection[tuple[Any, ...]]
Pool = AsyncConnectionPool[Conn]


async def _configure(conn: Conn) -> None:
    conn.prepare_threshold = 1  # the statements are few and constant: plan each one once
    await conn.set_autocommit(True)


def make_pool(dsn: str, *, size: int) -> Pool:
    """A pool, not open yet. Connections that a Postgres restart broke are replaced on loan."""
    return AsyncConnectionPool(
        dsn,
        min_size=min(2, size),
        max_size=size,
        open=False,
        configure=_configure,
        check=AsyncConnectionPool.check_connection,
        reconnect_timeout=float("inf"),
        timeout=10.0,
        name="state",
    )


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncGenerator[Conn]:
    """A connection inside a transaction: committed at the end, rolled back on any error."""
    async with pool.connection() as conn, conn.transaction():
        yield conn
