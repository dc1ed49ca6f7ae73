"""Tables of buffered datasets: a batch waits only for conflicting writers."""

from collections.abc import Generator
from uuid import uuid4

import psycopg
import pytest

from support.buffered import write_rows
from support.postgres import Templates, copied
from trace_etl.data import connection
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


def test_old_batch_records_are_deleted_in_small_portions_without_waiting(
    dsn: str, shape: BufferTable
) -> None:
    insert = """INSERT INTO buffer_batches (publish_id, dataset_version, row_count, sunk_at)
              SELECT gen_random_uuid(), %s, 1, now() - interval '40 days' - n * interval '1 hour'
                FROM generate_series(1, 1500) n RETURNING publish_id"""
    left = "SELECT count(*) FROM buffer_batches WHERE sunk_at < now() - interval '30 days'"
    with psycopg.connect(dsn, autocommit=True) as conn:
        (oldest,) = conn.execute(insert, (shape.dataset_version,)).fetchall()[-1]
        with psycopg.connect(dsn) as rival:
            rival.execute("SELECT FROM buffer_batches WHERE publish_id = %s FOR UPDATE", (oldest,))
            write(dsn, shape, 1)
            assert conn.execute(left).fetchone() == (500,)
        write(dsn, shape, 2)
        assert conn.execute(left).fetchone() == (0,)
