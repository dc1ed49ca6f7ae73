"""Answers of the Query Service compared with bare DuckDB on the same files."""

from collections.abc import Generator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pytest

from support.dispatcher import Secrets
from support.generated_selects import make_rows, make_selects
from support.postgres import Templates, copied
from support.query import LiveQuery, Warehouse, running_query_service

DAG = """
name: reading
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - {name: work, operator: sql, inputs: [{from: {job: request}}], outputs: [out], config: {sql: SELECT 1 AS n}}
publish:
  - {name: events, from: {job: work}}
"""
SELECTS = 100


@pytest.fixture(scope="module")
def filled(
    secrets: Secrets, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[LiveQuery, list[Path]]]:
    """A Query Service, and the files of the dataset `events` in two partitions."""
    with copied(templates) as dsns:
        warehouse = Warehouse(dsns, tmp_path_factory.mktemp("objects"))
        warehouse.deploy(DAG)
        rows = make_rows(7)
        files: list[Path] = []
        for start, part in ((0, rows.slice(0, 240)), (12, rows.slice(240))):
            directory = warehouse.commit("events", start, start + 11, part)
            files += directory.glob("*.parquet")
        with running_query_service(secrets, dsns, warehouse.objects) as query:
            yield query, files


def test_generated_queries_answer_like_bare_duckdb(filled: tuple[LiveQuery, list[Path]]) -> None:
    query, files = filled
    bare = duckdb.connect()
    bare.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet({[str(f) for f in files]})")
    not_empty = 0
    with query.client() as http:
        for sql in make_selects(1, SELECTS, "events"):
            answer = http.post("/v1/query", json={"sql": sql, "format": "arrow"})
            assert answer.status_code == 200, (sql, answer.text)
            ours = pa.ipc.open_stream(answer.content).read_all()
            expected = bare.execute(sql)
            assert ours.schema.names == [column[0] for column in expected.description]
            rows = list(zip(*(column.to_pylist() for column in ours.columns), strict=True))
            assert rows == expected.fetchall(), sql
            not_empty += ours.num_rows > 0
    assert not_empty > SELECTS // 2
