"""Postgres state crashes right after a query was answered: its record is still there."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from support.services.dispatcher import Secrets
from support.services.query import running_query_service
from trace_etl.data import migrations as data_migrations
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.state.db import migrations

QUERIES = 20


@pytest.fixture
def postgres(tmp_path: Path) -> Generator[EmbeddedPostgres]:
    """Its log is not synchronised: the test ends Postgres, not the machine."""
    server = EmbeddedPostgres(
        tmp_path / "postgres", settings={"shared_buffers": "16MB", "fsync": "off"}
    )
    try:
        yield server
    finally:
        server.stop()
        server.remove()


def crash(postgres: EmbeddedPostgres) -> None:
    """End Postgres without a checkpoint, and without writing what its buffers hold."""
    assert postgres._process is not None
    os.kill(postgres._process.pid, signal.SIGQUIT)
    postgres._process.wait(30)
    postgres.stop()


def count_records(dsns: Dsns) -> int:
    with psycopg.connect(dsns.state) as conn:
        return conn.execute("SELECT count(*) FROM query_audit").fetchall()[0][0]


def test_no_record_of_an_answered_query_is_lost_when_postgres_crashes(
    secrets: Secrets, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    dsns = databases.provision(postgres.start())
    migrations.apply(dsns.state)
    data_migrations.apply(dsns.data)
    with (
        running_query_service(secrets, dsns, tmp_path / "objects") as query,
        query.client() as http,
    ):
        for _ in range(QUERIES):
            assert http.post("/v1/query", json={"sql": "SELECT 1"}).status_code == 200
        crash(postgres)
        postgres.start()
        assert count_records(dsns) == QUERIES
