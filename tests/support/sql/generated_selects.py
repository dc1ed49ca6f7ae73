"""SELECTs made from a seed, in the SQL that DuckDB and Spark share, and the rows they read."""

import random
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.ipc

from support.services.query import Warehouse

EVENTS_DAG = """
name: reading
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - {name: work, operator: sql, inputs: [{from: {job: request}}], outputs: [out], config: {sql: SELECT 1 AS n}}
publish:
  - {name: events, from: {job: work}}
"""

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_AGGREGATES = (
    "count(*)",
    "count(DISTINCT word)",
    "sum(amount)",
    "min(n)",
    "max(word)",
    "sum(CASE WHEN n % 2 = 0 THEN 1 ELSE 0 END)",
    "max(octet_length(hash))",
)
_GROUPS = ("word", "n % 5", "block_number", "word, n % 3")


def make_rows(seed: int, count: int = 400) -> pa.Table:
    """Return rows with nulls, equal values and every kind of column that both engines compare alike."""
    chooser = random.Random(seed)
    words = ["red", "blue", "o'clock", "", "ünï", None]
    return pa.table(
        {
            "n": pa.array(range(count), pa.int64()),
            "block_number": pa.array([i // 20 for i in range(count)], pa.int64()),
            "word": pa.array([chooser.choice(words) for _ in range(count)], pa.string()),
            "amount": pa.array(
                [chooser.choice([None, chooser.randrange(-1000, 1000)]) for _ in range(count)],
                pa.int64(),
            ),
            "hash": pa.array([chooser.randbytes(chooser.randrange(4)) for _ in range(count)]),
        }
    )


def commit_events(warehouse: Warehouse) -> list[Path]:
    """Commit the rows to the dataset `events`, in two partitions. Returns their files."""
    rows = make_rows(7)
    files: list[Path] = []
    for start, part in ((0, rows.slice(0, 240)), (12, rows.slice(240))):
        files += warehouse.commit("events", start, start + 11, part).glob("*.parquet")
    return files


def read_rows(http: httpx.Client, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of a query that must succeed, with the types of Arrow."""
    answer = http.post("/v1/query", json={"sql": sql, "format": "arrow"})
    assert answer.status_code == 200, (sql, answer.text)
    table = pa.ipc.open_stream(answer.content).read_all()
    columns = [column.to_pylist() for column in table.columns]
    return table.schema.names, list(zip(*columns, strict=True))


def make_selects(seed: int, count: int, table: str) -> list[str]:
    """Return queries whose order of rows is determined, so that answers can be compared as lists."""
    chooser = random.Random(seed)
    makers = (_filter, _aggregate, _join, _window, _union)
    return [makers[i % len(makers)](chooser, table) for i in range(count)]


def _condition(chooser: random.Random, prefix: str = "") -> str:
    kind = chooser.randrange(6)
    number, sign = chooser.randrange(-50, 450), chooser.choice(_COMPARISONS)
    if kind == 0:
        return f"{prefix}n {sign} {number}"
    if kind == 1:
        return f"{prefix}amount {sign} {number}"
    if kind == 2:
        return f"{prefix}word IN ('red', 'o''clock', 'none')"
    if kind == 3:
        return f"{prefix}word IS {chooser.choice(['', 'NOT '])}NULL"
    if kind == 4:
        return f"{prefix}block_number BETWEEN {number % 20} AND {number % 20 + 3}"
    return f"NOT ({_condition(chooser, prefix)} OR {_condition(chooser, prefix)})"


def _where(chooser: random.Random, prefix: str = "") -> str:
    parts = [_condition(chooser, prefix) for _ in range(chooser.randrange(1, 4))]
    return chooser.choice([" AND ", " OR "]).join(f"({part})" for part in parts)


def _filter(chooser: random.Random, table: str) -> str:
    return (
        f"SELECT n, word, amount, hash FROM {table} WHERE {_where(chooser)}"
        f" ORDER BY n {chooser.choice(['', 'DESC'])} LIMIT {chooser.randrange(1, 60)}"
    )


def _aggregate(chooser: random.Random, table: str) -> str:
    chosen = ", ".join(chooser.sample(_AGGREGATES, 3))
    group = chooser.choice(_GROUPS)
    # By position: Spark does not find the columns of an expression again after the aggregation.
    order = ", ".join(f"{n} NULLS FIRST" for n, _ in enumerate(group.split(", "), 1))
    return (
        f"SELECT {group}, {chosen} FROM {table} WHERE {_where(chooser)}"
        f" GROUP BY {group} HAVING count(*) > {chooser.randrange(3)} ORDER BY {order}"
    )


def _join(chooser: random.Random, table: str) -> str:
    kind = chooser.choice(["JOIN", "LEFT JOIN"])
    return (
        f"SELECT a.n, b.n AS m, b.word FROM {table} a {kind} {table} b"
        f" ON b.block_number = a.block_number AND b.n = a.n + {chooser.randrange(1, 4)}"
        f" WHERE {_where(chooser, 'a.')} ORDER BY a.n, b.n NULLS FIRST LIMIT 80"
    )


def _window(chooser: random.Random, table: str) -> str:
    key = chooser.choice(["block_number", "word"])
    return (
        f"WITH ranked AS (SELECT n, {key}, row_number() OVER (PARTITION BY {key} ORDER BY n DESC)"
        f" AS place FROM {table} WHERE {_where(chooser)})"
        f" SELECT * FROM ranked WHERE place <= {chooser.randrange(1, 5)} ORDER BY n"
    )


def _union(chooser: random.Random, table: str) -> str:
    return (
        f"SELECT count(*) AS c, sum(n) AS s FROM (SELECT n FROM {table} WHERE {_where(chooser)}"
        f" UNION SELECT n + 100 FROM {table} WHERE {_where(chooser)}) t"
    )
