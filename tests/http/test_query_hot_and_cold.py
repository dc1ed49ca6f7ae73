"""A dataset whose newest rows are in a hot table and whose older rows are in files: each row once."""

import threading
from collections.abc import Generator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from support.services.dispatcher import Secrets
from support.services.postgres import Templates
from support.services.query import QuerySetup, opened_warehouse
from trace_etl.data import connection, hot_tables
from trace_etl.model.storage import hot_table
from trace_etl.query.pins import join_ranges

DAG = """
name: chain
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks]
  - name: compact
    operator: parquet_compact
    inputs: [{from: {job: follow}}]
    outputs: [blocks]
publish:
  - {name: hot_blocks, from: {job: follow}}
  - {name: blocks, from: {job: compact}, hot: {job: follow, output: hot_blocks}}
"""
BLOCKS = pa.schema(
    [("block_number", pa.int64()), ("hash", pa.binary()), ("fee", pa.decimal128(38, 0))]
)
COLUMNS = [
    {"name": "block_number", "type": "bigint"},
    {"name": "hash", "type": "binary"},
    {"name": "fee", "type": "decimal(38,0)"},
]


def rows(first: int, last: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"block_number": n, "hash": n.to_bytes(4, "big"), "fee": n}
            for n in range(first, last + 1)
        ],
        schema=BLOCKS,
    )


@dataclass(frozen=True)
class FollowedChain(QuerySetup):
    """A dataset in a table and in files."""

    @property
    def table(self) -> str:
        return hot_table(*self.warehouse.generation("hot_blocks"))

    def follow(self, first: int, last: int) -> None:
        with connection.connect(self.warehouse.dsns.data) as conn, connection.transaction(conn):
            hot_tables.ensure_table(conn, self.table, BLOCKS)
            hot_tables.copy_rows(conn, self.table, rows(first, last).to_batches())

    def compact(self, first: int, last: int, *, trim: bool = True) -> None:
        """Commit a range as Parquet, then delete it from the hot table, as the two jobs do."""
        self.warehouse.commit("blocks", first, last, rows(first, last), schema=COLUMNS)
        if trim:
            with connection.connect(self.warehouse.dsns.data) as conn, connection.transaction(conn):
                hot_tables.trim_range(conn, self.table, first, last)

    def count(self) -> list[int]:
        (row,) = self.query.ask(
            "SELECT count(*), count(DISTINCT block_number), min(block_number), max(block_number)"
            " FROM blocks"
        )["rows"]
        return row


@pytest.fixture
def chain(
    secrets: Secrets, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Generator[FollowedChain]:
    objects = tmp_path_factory.mktemp("objects")
    with opened_warehouse(secrets, templates, objects, DAG) as setup:
        yield FollowedChain(setup.query, setup.warehouse)


def test_each_block_is_read_once_from_the_table_or_from_files(chain: FollowedChain) -> None:
    chain.follow(0, 99)
    assert chain.count() == [100, 100, 0, 99]  # all in the table
    chain.compact(0, 49, trim=False)
    chain.compact(60, 69, trim=False)
    assert chain.count() == [100, 100, 0, 99]  # in both places, except for 50-59 and 70-99
    chain.compact(50, 59)
    assert chain.count() == [100, 100, 0, 99]
    answer = chain.query.ask(
        "SELECT block_number, hash, fee FROM blocks WHERE block_number BETWEEN 68 AND 71 ORDER BY 1"
    )
    assert answer["rows"] == [[n, "0x" + n.to_bytes(4, "big").hex(), str(n)] for n in range(68, 72)]
    assert [c["type"] for c in answer["columns"]] == ["BIGINT", "BLOB", "DECIMAL(38,0)"]
    assert chain.query.ask("SELECT count(*) FROM hot_blocks")["rows"] == [[90]]


def test_queries_see_each_block_once_while_blocks_move_to_files(chain: FollowedChain) -> None:
    chain.follow(0, 199)
    ended = threading.Event()

    def move() -> None:
        try:
            for first in range(0, 190, 5):
                chain.compact(first, first + 4)
        finally:
            ended.set()

    mover = threading.Thread(target=move)
    mover.start()
    counts = [chain.count()]
    while not ended.is_set():
        counts.append(chain.count())
    mover.join()
    assert len(counts) > 2
    assert {tuple(count) for count in counts} == {(200, 200, 0, 199)}


def test_a_hot_part_with_other_columns_is_refused(chain: FollowedChain) -> None:
    chain.follow(0, 9)
    other = [COLUMNS[0], {"name": "other", "type": "bigint"}]
    part = pa.table({"block_number": [1], "other": [1]})
    chain.warehouse.commit("blocks", 0, 4, part, schema=other)
    problem = chain.query.refusal("SELECT * FROM blocks")
    assert "do not have the same columns" in problem["detail"]


def test_partitions_with_more_columns_leave_nulls_in_the_others(chain: FollowedChain) -> None:
    chain.follow(10, 12)
    chain.compact(0, 4, trim=False)
    more = rows(5, 9).append_column("size", pa.array([7] * 5, pa.int64()))
    schema = [*COLUMNS, {"name": "size", "type": "bigint"}]
    chain.warehouse.commit("blocks", 5, 9, more, schema=schema)
    empty = more.slice(0, 0).append_column("late", pa.array([], pa.int64()))
    chain.warehouse.commit(
        "blocks", 20, 24, empty, schema=[*schema, {"name": "late", "type": "bigint"}]
    )
    answer = chain.query.ask("SELECT block_number, size, late FROM blocks ORDER BY 1")
    sizes = [None] * 5 + [7] * 5 + [None] * 3
    assert answer["rows"] == [[n, size, None] for n, size in enumerate(sizes)]


def test_adjacent_partitions_cover_one_range_of_blocks() -> None:
    ranges = join_ranges([(0, 9), (20, 29), (10, 19), (None, None), (40, 49)])
    assert ranges == [(0, 29), (40, 49)]
    assert join_ranges([]) == []
