"""Reading several tables as of one instant."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from trace_etl.state.db.pool import Conn, Pool, transaction

_AS_OF_NOW = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@asynccontextmanager
async def snapshot(pool: Pool) -> AsyncGenerator[Conn]:
    """A transaction whose every statement sees the same committed state, and changes nothing."""
    async with transaction(pool) as conn:
        await conn.execute(_AS_OF_NOW)
        yield conn
