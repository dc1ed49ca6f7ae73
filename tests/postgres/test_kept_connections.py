"""Connections that stay out between uses: few, and none that a restart of Postgres broke."""

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import pytest

from trace_etl.lite.postgres.databases import Dsns
from trace_etl.state.db.pool import BROKEN, Conn, KeptConnections, Pool, make_pool

_END = """
SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'kept'
"""


@pytest.fixture
async def pool(dsns: Dsns) -> AsyncGenerator[Pool]:
    async with make_pool(f"{dsns.state} application_name=kept", size=6, hot=True) as made:
        yield made


async def ask(conn: Conn) -> int:
    cursor = await conn.execute("SELECT pg_backend_pid()")
    return (await cursor.fetchall())[0][0]


async def at_once(kept: KeptConnections, count: int) -> list[int]:
    """Use so many at the same time; the backends that answered."""
    barrier = asyncio.Barrier(count)

    async def step(conn: Conn) -> int:
        await barrier.wait()
        return await ask(conn)

    return await asyncio.gather(*(kept.use(step) for _ in range(count)))


async def test_one_caller_after_another_uses_one_connection(pool: Pool) -> None:
    kept = KeptConnections(pool)
    assert len({await kept.use(ask) for _ in range(5)}) == 1
    assert kept.resting == 1
    await kept.close()


async def test_no_more_are_kept_than_allowed_and_the_others_go_back(pool: Pool) -> None:
    kept = KeptConnections(pool, most=2)
    assert len(set(await at_once(kept, 6))) == 6
    assert kept.resting == 2
    async with asyncio.timeout(20), pool.connection() as one, pool.connection() as two:
        assert await ask(one) != await ask(two)
    await kept.close()


async def test_after_a_restart_one_call_fails_and_the_next_ones_work(
    pool: Pool, dsns: Dsns
) -> None:
    kept = KeptConnections(pool, most=4)
    await at_once(kept, 6)
    with psycopg.connect(dsns.state, autocommit=True) as conn:
        assert conn.execute(_END).fetchall()[0][0] == 6
    with pytest.raises(BROKEN):
        await kept.use(ask)
    assert kept.resting == 0
    async with asyncio.timeout(20):
        assert len(set(await at_once(kept, 6))) == 6
    await kept.close()


async def test_a_step_that_fails_by_itself_breaks_no_connection(pool: Pool) -> None:
    kept = KeptConnections(pool)
    before = await at_once(kept, 2)

    async def fail(conn: Conn) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await kept.use(fail)
    assert kept.resting == 1
    assert await kept.use(ask) in before
    await kept.close()
