"""Tables of generations that nobody reads any more are dropped after their retention."""

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest

from support.dispatcher import Secrets, live
from support.lifecycle import Bench, bench
from support.postgres import Templates, copied, sql
from trace_etl.data import appends, connection, hot_tables, retired_tables
from trace_etl.data.appends import Target
from trace_etl.http.dispatcher_client import DispatcherClient, token_reader
from trace_etl.model.storage import hot_table
from trace_etl.policy.retry import Backoff
from trace_etl.sink.retired_tables import sweep_once

_DAG = """
name: tables
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: keep
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [kept]
    update_strategy: append
    unique_key: [n]
    config: {{sql: "SELECT {n} AS n"}}
  - name: follow
    operator: block_follower
    source: {{kind: always_on}}
    outputs: [hot_blocks, hot_logs]
    config: {{start_block: {n}}}
publish:
  - {{name: kept, from: {{job: keep}}}}
"""
SCHEMA = pa.schema([("n", pa.int64())])


@dataclass
class Stage:
    """A Dispatcher, a worker's client of it, and tables in Postgres data."""

    bench: Bench
    client: DispatcherClient

    @property
    def data(self) -> str:
        return self.bench.live.dsns.data

    def deploy(self, n: int) -> list[str]:
        """A generation of its own for each `n`, with its tables; their names."""
        reply = self.bench.user.post("/v1/dags", json={"text": _DAG.format(n=n)})
        assert reply.status_code == 200, reply.text
        made = [
            hot_table(UUID(d["dataset_uuid"]), UUID(d["building_version"] or d["dataset_version"]))
            for d in reply.json()["datasets"]
            if d["job"] != "request"
        ]
        with connection.connect(self.data) as conn, connection.transaction(conn):
            for table in made:
                hot_tables.ensure(conn, table, SCHEMA, key=["n"])
        return made

    def tables(self) -> set[str]:
        with connection.connect(self.data) as conn:
            return set(retired_tables.held(conn, limit=100))

    def sweep(self) -> int:
        return sweep_once(self.data, self.client)

    def pass_time(self, days: int) -> None:
        self.bench.rows(
            "UPDATE dataset_versions SET abandoned_at = abandoned_at - make_interval(days => %s)",
            days,
        )


@pytest.fixture
def stage(templates: Templates, secrets: Secrets, tmp_path: Path) -> Generator[Stage]:
    with (
        copied(templates) as dsns,
        live(secrets, dsns, tmp_path / "objects") as running,
        bench(running) as made,
    ):
        cfg = running.cfg
        client = DispatcherClient(
            f"https://127.0.0.1:{cfg.internal_port}",
            secrets.ca,
            token_reader(cfg.worker_tokens_file),
            Backoff(timedelta(seconds=1), timedelta(seconds=1), jitter=0),
        )
        yield Stage(made, client)
        client.close()


def test_an_old_generation_goes_after_its_retention_and_no_other(stage: Stage) -> None:
    first, second, third = stage.deploy(1), stage.deploy(2), stage.deploy(3)
    assert stage.sweep() == 0  # noticed, not yet due
    stage.pass_time(29)
    assert stage.sweep() == 0
    stage.pass_time(2)
    # The second is what a rollback would bring back.
    assert stage.sweep() == 3
    assert stage.tables() == {*second, *third} and not stage.tables() & {*first}
    assert stage.bench.user.post("/v1/dags/tables/rollback").status_code == 200
    stage.pass_time(400)
    stage.sweep()
    assert set(second) <= stage.tables()


def test_one_that_came_back_has_its_time_anew(stage: Stage) -> None:
    first = stage.deploy(1)
    stage.deploy(2)
    stage.deploy(3)
    stage.sweep()
    stage.pass_time(31)
    stage.deploy(1)
    assert stage.sweep() == 0
    assert set(first) <= stage.tables()
    stage.deploy(4)
    stage.deploy(5)
    stage.sweep()
    assert set(first) <= stage.tables()


def test_the_word_that_its_work_is_done_goes_with_the_rows(stage: Stage) -> None:
    stage.deploy(1)
    stage.bench.user.post("/v1/triggers", json=_asked(0, 9))
    stage.bench.live.drain()
    (task,) = _tasks(stage, "keep")
    attempt = stage.bench.claimed(task)
    assert stage.bench.complete(attempt).status_code == 200
    stage.deploy(2)
    stage.deploy(3)
    stage.sweep()
    stage.pass_time(31)
    assert stage.sweep() == 3
    assert task not in _tasks(stage, "keep")
    # Its definition comes back: the work is there again.
    stage.deploy(1)
    stage.bench.live.drain()
    again = stage.bench.rows(
        "SELECT t.task_id FROM tasks t JOIN job_revisions r USING (revision_id)"
        " WHERE r.config ->> 'sql' = 'SELECT 1 AS n' AND t.status = 'Queued'"
    )
    assert len(again) == 1


def _asked(start: int, end: int) -> dict[str, object]:
    return {"dag": "tables", "job": "request", "start": start, "end": end}


def _tasks(stage: Stage, job: str) -> list[str]:
    rows = stage.bench.rows(
        "SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id) WHERE j.name = %s", job
    )
    return [str(row["task_id"]) for row in rows]


def test_one_that_still_runs_keeps_its_tables(stage: Stage) -> None:
    stage.deploy(1)
    stage.bench.user.post("/v1/triggers", json=_asked(0, 9))
    stage.bench.live.drain()
    attempt = stage.bench.claimed(_tasks(stage, "keep")[0])
    stage.deploy(2)
    stage.deploy(3)
    stage.sweep()
    stage.pass_time(31)
    assert stage.sweep() == 2  # the follower's
    stage.bench.complete(attempt, "Canceled")
    assert stage.sweep() == 1


def test_names_that_are_no_datasets_and_callers_that_are_no_workers_get_nothing(
    stage: Stage,
) -> None:
    url = "/internal/tables-to-drop"
    assert stage.bench.http.post(url, json={"tables": []}).status_code == 401
    token = {"X-Trace-Worker-Token": token_reader(stage.bench.live.cfg.worker_tokens_file)()}
    bad = stage.bench.http.post(url, json={"tables": ["followers"]}, headers=token)
    assert bad.status_code == 422
    unknown = hot_table(uuid4(), uuid4())
    reply = stage.bench.http.post(url, json={"tables": [unknown]}, headers=token)
    assert reply.json() == {"retired": []}


# --- the drop itself --------------------------------------------------------------------------


@pytest.fixture
def target(templates: Templates) -> Generator[tuple[str, Target]]:
    with copied(templates) as dsns:
        made = Target(hot_table(uuid4(), version := uuid4()), SCHEMA, ("n",), version, uuid4(), 1)
        with connection.connect(dsns.data) as conn, connection.transaction(conn):
            appends.prepare(conn, made)
            appends.merge(conn, made)
        yield dsns.data, made


def _drop(dsn: str, target: Target) -> bool:
    with connection.connect(dsn) as conn:
        return retired_tables.drop(conn, [target.table], [target.dataset_version])


def test_a_table_that_was_written_lately_stays_whatever_was_said(
    target: tuple[str, Target],
) -> None:
    dsn, made = target
    assert not _drop(dsn, made)
    sql(dsn, "UPDATE append_fences SET updated_at = now() - interval '2 hours'")
    assert _drop(dsn, made)
    assert sql(dsn, "SELECT 1 FROM append_fences") == []
    assert _drop(dsn, made)  # again: there is nothing left to do


def test_a_table_in_use_is_left_for_another_time(target: tuple[str, Target]) -> None:
    dsn, made = target
    sql(dsn, "UPDATE append_fences SET updated_at = now() - interval '2 hours'")
    with psycopg.connect(dsn) as reader:
        reader.execute(f"SELECT * FROM {made.table}")
        assert not _drop(dsn, made)
        reader.rollback()
        assert _drop(dsn, made)
