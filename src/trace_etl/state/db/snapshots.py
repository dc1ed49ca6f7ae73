"""Read several tables as of one moment."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from trace_etl.state.db.pool import Conn, Pool, transaction

_REPEATABLE_READ = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@asynccontextmanager
async def snapshot(pool: Pool) -> AsyncGenerator[Conn]:
    """Open a read-only transaction in which every statement sees the same committed state."""
    async with transaction(pool) as conn:
        await conn.execute(_REPEATABLE_READ)
        yield conn


@asynccontextmanager
async def read_snapshot(conn: Conn) -> AsyncGenerator[None]:
    """Let every statement of the block see the same committed state, on a given connection."""
    async with conn.transaction():
        await conn.execute(_REPEATABLE_READ)
        yield
