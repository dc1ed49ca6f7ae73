"""Connections kept open between uses: a limited number, and broken ones are replaced."""

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import pytest

from trace_etl.lite.postgres.databases import Dsns
from trace_etl.state.db.pool import CONNECTION_ERRORS, Conn, Pool, ReusedConnections, make_pool

_TERMINATE_BACKENDS = """
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'kept'
"""


@pytest.fixture
async def pool(dsns: Dsns) -> AsyncGenerator[Pool]:
    async with make_pool(f"{dsns.state} application_name=kept", size=6, hot=True) as made:
        yield made


async def backend_pid(conn: Conn) -> int:
    cursor = await conn.execute("SELECT pg_backend_pid()")
    return (await cursor.fetchall())[0][0]


async def use_concurrently(kept: ReusedConnections, count: int) -> list[int]:
    """Use that many connections concurrently and return the backends that answered."""
    barrier = asyncio.Barrier(count)

    async def step(conn: Conn) -> int:
        await barrier.wait()
        return await backend_pid(conn)

    return await asyncio.gather(*(kept.use(step) for _ in range(count)))


def count_idle(kept: ReusedConnections) -> int:
    """Return how many connections are checked out of the pool but not in use."""
    return len(kept._idle)  # pyright: ignore[reportPrivateUsage]


async def test_sequential_callers_use_one_connection(pool: Pool) -> None:
    kept = ReusedConnections(pool)
    assert len({await kept.use(backend_pid) for _ in range(5)}) == 1
    assert count_idle(kept) == 1
    await kept.close()


async def test_connections_above_the_limit_return_to_the_pool(pool: Pool) -> None:
    kept = ReusedConnections(pool, max_idle=2)
    assert len(set(await use_concurrently(kept, 6))) == 6
    assert count_idle(kept) == 2
    async with asyncio.timeout(20), pool.connection() as one, pool.connection() as two:
        assert await backend_pid(one) != await backend_pid(two)
    await kept.close()


async def test_after_a_postgres_restart_one_call_fails_and_the_next_ones_work(
    pool: Pool, dsns: Dsns
) -> None:
    kept = ReusedConnections(pool, max_idle=4)
    await use_concurrently(kept, 6)
    with psycopg.connect(dsns.state, autocommit=True) as conn:
        assert conn.execute(_TERMINATE_BACKENDS).fetchall()[0][0] == 6
    with pytest.raises(CONNECTION_ERRORS):
        await kept.use(backend_pid)
    assert count_idle(kept) == 0
    async with asyncio.timeout(20):
        assert len(set(await use_concurrently(kept, 6))) == 6
    await kept.close()


async def test_an_application_error_does_not_discard_the_connection(pool: Pool) -> None:
    kept = ReusedConnections(pool)
    before = await use_concurrently(kept, 2)

    async def fail(conn: Conn) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await kept.use(fail)
    assert count_idle(kept) == 1
    assert await kept.use(backend_pid) in before
    await kept.close()
