"""Transactions that deadlock: Postgres aborts one, and Trace retries it."""

import asyncio

import pytest
from psycopg.errors import DeadlockDetected

from trace_etl.lite.postgres.databases import Dsns
from trace_etl.state.db.pool import Conn, make_pool, transact

_LOCK = "SELECT pg_advisory_xact_lock(%s)"


async def test_both_transactions_of_a_deadlock_complete(dsns: Dsns) -> None:
    tries: list[int] = []
    holding = [asyncio.Event(), asyncio.Event()]

    async def step(conn: Conn, mine: int, other: int) -> int:
        tries.append(mine)
        await conn.execute(_LOCK, (mine,))
        holding[mine].set()
        await holding[other].wait()
        await conn.execute(_LOCK, (other,))
        return mine

    async with make_pool(dsns.state, size=4) as pool:
        done = await asyncio.gather(
            transact(pool, lambda conn: step(conn, 0, 1)),
            transact(pool, lambda conn: step(conn, 1, 0)),
        )
    assert done == [0, 1]
    assert len(tries) == 3


async def test_a_transaction_that_deadlocks_every_time_raises(dsns: Dsns) -> None:
    tries: list[int] = []

    async def deadlock(conn: Conn) -> None:
        tries.append(1)
        raise DeadlockDetected("again")

    async with make_pool(dsns.state, size=2) as pool:
        with pytest.raises(DeadlockDetected):
            await transact(pool, deadlock, tries=2)
    assert len(tries) == 2
