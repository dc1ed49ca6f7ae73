"""`Connection.rows` behaves like a cursor: values, rows, errors, transactions."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID, uuid4

import pytest
from psycopg import DataError, OperationalError
from psycopg.errors import DivisionByZero, SyntaxError, UniqueViolation
from psycopg.pq import TransactionStatus

from support.services.postgres import sql
from support.waiting import eventually
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.state.db.connection import Connection

_SAME = "SELECT %(text)s::text, %(number)s::int, %(id)s::uuid, %(text)s::text"
_SLOW = "SELECT pg_sleep(%(seconds)s::float8)"
_SLEEPING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
_DIVIDED = "SELECT 10 / %(by)s::int"


@pytest.fixture
async def conn(dsns: Dsns) -> AsyncGenerator[Connection]:
    async with await Connection.connect(dsns.state, autocommit=True) as made:
        yield made


async def test_values_survive_a_round_trip(conn: Connection) -> None:
    identifier = uuid4()
    for text in ("plain", "", "it's %s, 100 % 'quoted' – ü 🦊", "$1"):
        values = {"text": text, "number": "-7", "id": str(identifier)}
        assert await conn.rows(_SAME, values, tuple[str, int, UUID, str]) == [
            (text, -7, identifier, text)
        ]


async def test_a_statement_is_prepared_once(conn: Connection) -> None:
    for by in ("1", "2", "5"):
        assert await conn.rows(_DIVIDED, {"by": by}, tuple) == [(10 // int(by),)]
    found = await conn.execute("SELECT statement FROM pg_prepared_statements WHERE NOT from_sql")
    assert await found.fetchall() == [("SELECT 10 / $1::int",)]


async def test_a_value_larger_than_the_socket_buffer_is_transferred(conn: Connection) -> None:
    text = "x" * 20_000_000
    (row,) = await conn.rows("SELECT %(text)s::text", {"text": text}, tuple)
    assert row == (text,)


async def test_an_error_equals_that_of_a_cursor_and_the_connection_stays_usable(
    conn: Connection,
) -> None:
    for _ in range(2):
        with pytest.raises(DivisionByZero):
            await conn.rows(_DIVIDED, {"by": "0"}, tuple)
        with pytest.raises(SyntaxError):
            await conn.rows("SELEC 1", {}, tuple)
        assert await conn.rows(_DIVIDED, {"by": "5"}, tuple) == [(2,)]


async def test_text_that_postgres_cannot_store_is_refused_instead_of_truncated(
    conn: Connection,
) -> None:
    with pytest.raises(DataError):
        await conn.rows("SELECT %(text)s::text", {"text": "good\0bad"}, tuple)
    assert await conn.rows(_DIVIDED, {"by": "5"}, tuple) == [(2,)]


async def test_a_percent_sign_is_escaped_as_for_a_cursor(conn: Connection) -> None:
    query = "SELECT 7 %% %(by)s::int"
    expected = await (await conn.execute(query, {"by": 4})).fetchall()
    assert await conn.rows(query, {"by": "4"}, tuple) == expected == [(3,)]


async def test_rows_runs_inside_the_current_transaction(conn: Connection) -> None:
    await conn.execute("CREATE TEMPORARY TABLE numbers (n int PRIMARY KEY)")
    insert = "INSERT INTO numbers VALUES (%(n)s::int) RETURNING n"
    with pytest.raises(UniqueViolation):
        async with conn.transaction():
            assert await conn.rows(insert, {"n": "1"}, tuple) == [(1,)]
            await conn.rows(insert, {"n": "1"}, tuple)
    assert await conn.rows("SELECT n FROM numbers", {}, tuple) == []
    async with conn.transaction():
        await conn.rows(insert, {"n": "2"}, tuple)
    assert await conn.rows("SELECT n FROM numbers", {}, tuple) == [(2,)]


async def test_a_broken_connection_raises_an_operational_error(conn: Connection) -> None:
    with pytest.raises(OperationalError):
        await conn.rows("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)", {}, tuple)
    assert conn.closed
    with pytest.raises(OperationalError):
        await conn.rows(_DIVIDED, {"by": "5"}, tuple)


async def test_canceling_a_running_statement_closes_the_connection(
    conn: Connection, dsns: Dsns
) -> None:
    async def sleep() -> None:
        async with conn.transaction():
            await conn.rows(_SLOW, {"seconds": "60"}, tuple)

    sleeping = asyncio.ensure_future(sleep())
    await asyncio.to_thread(eventually, lambda: sql(dsns.state, _SLEEPING), "the statement runs")
    assert conn.pgconn.transaction_status == TransactionStatus.ACTIVE
    socket = conn.fileno()
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert conn.closed
    assert not asyncio.get_running_loop().remove_reader(socket)


async def test_prepared_statements_still_work_after_a_rollback(conn: Connection) -> None:
    conn.prepare_threshold = 0  # the pools use the same setting
    for _ in range(3):
        assert await conn.rows(_DIVIDED, {"by": "5"}, tuple) == [(2,)]
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute("SELECT 1")
                raise ZeroDivisionError
        assert await conn.rows(_DIVIDED, {"by": "2"}, tuple) == [(5,)]
        async with conn.transaction():
            await conn.execute("SELECT 2")
            assert await conn.rows(_DIVIDED, {"by": "5"}, tuple) == [(2,)]
        assert await conn.rows(_DIVIDED, {"by": "2"}, tuple) == [(5,)]
