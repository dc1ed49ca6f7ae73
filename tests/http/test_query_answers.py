"""Answers of the Query Service compared with bare DuckDB on the same files."""

import duckdb

from support.services.query import QuerySetup
from support.sql.generated_selects import EVENTS_DAG, commit_events, make_selects, read_rows

DAG = EVENTS_DAG
SELECTS = 100


def test_generated_queries_answer_like_bare_duckdb(reading: QuerySetup) -> None:
    files = commit_events(reading.warehouse)
    bare = duckdb.connect()
    bare.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet({[str(f) for f in files]})")
    not_empty = 0
    with reading.query.client() as http:
        for sql in make_selects(1, SELECTS, "events"):
            names, rows = read_rows(http, sql)
            expected = bare.execute(sql)
            assert names == [column[0] for column in expected.description]
            assert rows == expected.fetchall(), sql
            not_empty += bool(rows)
    assert not_empty > SELECTS // 2
