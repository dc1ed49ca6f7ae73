"""Tables of buffered datasets: a batch waits only for conflicting writers."""

from collections.abc import Generator
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from support.data.buffered import write_rows
from support.services.postgres import Templates, copied
from trace_etl.data import buffers, connection
from trace_etl.data.buffers import BufferTable, WrittenBatch
from trace_etl.model.storage import hot_table


@pytest.fixture(scope="module")
def dsn(templates: Templates) -> Generator[str]:
    with copied(templates) as dsns:
        yield dsns.data


@pytest.fixture
def shape() -> BufferTable:
    version = uuid4()
    return BufferTable(hot_table(uuid4(), version), version, (("id", "string", False),), ("id",))


def write(dsn: str, shape: BufferTable, number: int) -> WrittenBatch:
    with connection.connect(dsn) as conn, connection.transaction(conn):
        conn.execute("SET LOCAL lock_timeout = '500ms'")
        return write_rows(conn, shape, number, [("a",)])


def test_a_batch_does_not_wait_for_a_vacuum(dsn: str, shape: BufferTable) -> None:
    write(dsn, shape, 1)
    with psycopg.connect(dsn) as vacuum:
        vacuum.execute(f'LOCK TABLE "{shape.table}" IN SHARE UPDATE EXCLUSIVE MODE')
        assert write(dsn, shape, 2) == WrittenBatch(1, 2)


def test_a_missing_index_is_created(dsn: str, shape: BufferTable) -> None:
    count = "SELECT count(*) FROM pg_indexes WHERE tablename = %s"
    write(dsn, shape, 1)
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.execute(count, (shape.table,)).fetchone() == (2,)
        conn.execute(f'DROP INDEX "{shape.table[:50]}_cursor"')
        write(dsn, shape, 2)
        assert conn.execute(count, (shape.table,)).fetchone() == (2,)


def test_old_batch_records_are_deleted_without_waiting(dsn: str, shape: BufferTable) -> None:
    insert = """INSERT INTO buffer_batches (publish_id, dataset_version, row_count, sunk_at)
              SELECT gen_random_uuid(), %s, 1, now() - interval '40 days' - n * interval '1 hour'
                FROM generate_series(1, 1500) n RETURNING publish_id"""
    left = "SELECT publish_id FROM buffer_batches WHERE sunk_at < now() - interval '30 days'"
    write(dsn, shape, 1)
    with psycopg.connect(dsn, autocommit=True) as conn:
        (oldest,) = conn.execute(insert, (shape.dataset_version,)).fetchall()[-1]
        with psycopg.connect(dsn) as rival:
            rival.execute("SELECT FROM buffer_batches WHERE publish_id = %s FOR UPDATE", (oldest,))
            buffers.delete_old_records(conn)
            assert conn.execute(left).fetchall() == [(oldest,)]
        buffers.delete_old_records(conn)
        assert conn.execute(left).fetchall() == []
        count = "SELECT count(*) FROM buffer_batches WHERE dataset_version = %s"
        assert conn.execute(count, (shape.dataset_version,)).fetchone() == (1,)


_KEYED = (
    ("address", "binary", False),
    ("day", "date", False),
    ("at", "timestamp", False),
    ("n", "long", True),
)


def _keyed_row(number: int, value: int) -> tuple[Any, ...]:
    day = date(2025, 1, 1 + number % 28)
    return number.to_bytes(4), day, datetime(2025, 1, 1, 0, number % 60, tzinfo=UTC), value


@pytest.mark.parametrize("again", [[0], [1], [501], list(range(600))])
def test_rows_whose_keys_exist_are_updated_whether_or_not_the_sample_has_them(
    dsn: str, again: list[int]
) -> None:
    version = uuid4()
    key = ("address", "day", "at")
    shape = BufferTable(hot_table(uuid4(), version), version, _KEYED, key)
    # The sample begins with the first row, so a new key is there.
    numbers = [600, *again, *range(601, 1300 - len(again))]
    with connection.connect(dsn) as conn:
        with connection.transaction(conn):
            write_rows(conn, shape, 1, [_keyed_row(n, 1) for n in range(600)])
        with connection.transaction(conn):
            write_rows(conn, shape, 2, [_keyed_row(n, 2) for n in numbers])
        stored = conn.execute(f'SELECT address, n, _published FROM "{shape.table}"').fetchall()
    expected = {n.to_bytes(4): (1, 1) for n in range(600)}
    expected |= {n.to_bytes(4): (2, 2) for n in numbers}
    assert {address: (n, no) for address, n, no in stored} == expected
    assert len(stored) == len(expected)


def test_of_equal_keys_in_new_rows_the_last_is_written(dsn: str) -> None:
    version = uuid4()
    columns = (("id", "string", False), ("n", "long", True))
    shape = BufferTable(hot_table(uuid4(), version), version, columns, ("id",))
    with connection.connect(dsn) as conn, connection.transaction(conn):
        write_rows(conn, shape, 1, [("a", 1), ("b", 2), ("a", 3)])
        stored = conn.execute(f'SELECT id, n FROM "{shape.table}" ORDER BY id').fetchall()
    assert stored == [("a", 3), ("b", 2)]
