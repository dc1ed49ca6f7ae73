"""Tables of unused generations are dropped after their retention."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest

from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied, sql
from trace_etl.data import appends, connection, hot_tables, retired_tables
from trace_etl.data.appends import AppendTarget
from trace_etl.http.clients.sink_client import SinkClient
from trace_etl.model.storage import hot_table
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
    """A Dispatcher, a worker's client for it, and tables in Postgres data."""

    bench: Bench
    client: SinkClient

    @property
    def data(self) -> str:
        return self.bench.live.dsns.data

    def deploy(self, n: int) -> list[str]:
        """Deploy a new generation for each `n`, create its tables and return their names."""
        reply = self.bench.user.post("/v1/dags", json={"text": _DAG.format(n=n)})
        assert reply.status_code == 200, reply.text
        made = [
            hot_table(UUID(d["dataset_uuid"]), UUID(d["building_version"] or d["dataset_version"]))
            for d in reply.json()["datasets"]
            if d["job"] != "request"
        ]
        with connection.connect(self.data) as conn, connection.transaction(conn):
            for table in made:
                hot_tables.ensure_table(conn, table, SCHEMA, key=["n"])
        return made

    def tables(self) -> set[str]:
        with connection.connect(self.data) as conn:
            return set(retired_tables.list_dataset_tables(conn, limit=100))

    def sweep(self) -> int:
        return sweep_once(self.data, self.client)

    def age_retired(self, days: int) -> None:
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
        client = SinkClient(
            f"https://127.0.0.1:{cfg.internal_port}",
            secrets.ca,
            lambda: secrets.service_token("sink"),
        )
        yield Stage(made, client)
        client.close()


def test_only_the_tables_of_an_old_generation_are_dropped_after_the_retention(stage: Stage) -> None:
    first, second, third = stage.deploy(1), stage.deploy(2), stage.deploy(3)
    assert stage.sweep() == 0  # found, but not due yet
    stage.age_retired(29)
    assert stage.sweep() == 0
    stage.age_retired(2)
    # The second generation is the target of a rollback.
    assert stage.sweep() == 3
    assert stage.tables() == {*second, *third} and not stage.tables() & {*first}
    assert stage.bench.user.post("/v1/dags/tables/rollback").status_code == 200
    stage.age_retired(400)
    stage.sweep()
    assert set(second) <= stage.tables()


def test_a_generation_that_is_deployed_again_starts_a_new_retention(stage: Stage) -> None:
    first = stage.deploy(1)
    stage.deploy(2)
    stage.deploy(3)
    stage.sweep()
    stage.age_retired(31)
    stage.deploy(1)
    assert stage.sweep() == 0
    assert set(first) <= stage.tables()
    stage.deploy(4)
    stage.deploy(5)
    stage.sweep()
    assert set(first) <= stage.tables()


def test_completed_tasks_are_deleted_with_the_tables_they_filled(stage: Stage) -> None:
    stage.deploy(1)
    stage.bench.user.post("/v1/triggers", json=trigger_body(0, 9))
    stage.bench.live.drain()
    (task,) = tasks_of(stage, "keep")
    attempt = stage.bench.claimed(task)
    assert stage.bench.complete(attempt).status_code == 200
    stage.deploy(2)
    stage.deploy(3)
    stage.sweep()
    stage.age_retired(31)
    assert stage.sweep() == 3
    assert task not in tasks_of(stage, "keep")
    # The first definition is deployed again, so its task is created again.
    stage.deploy(1)
    stage.bench.live.drain()
    again = stage.bench.rows(
        "SELECT t.task_id FROM tasks t JOIN job_revisions r USING (revision_id)"
        " WHERE r.config ->> 'sql' = 'SELECT 1 AS n' AND t.status = 'Queued'"
    )
    assert len(again) == 1


def trigger_body(start: int, end: int) -> dict[str, object]:
    return {"dag": "tables", "job": "request", "start": start, "end": end}


def tasks_of(stage: Stage, job: str) -> list[str]:
    rows = stage.bench.rows(
        "SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id) WHERE j.name = %s", job
    )
    return [str(row["task_id"]) for row in rows]


def test_a_generation_with_a_running_task_keeps_its_tables(stage: Stage) -> None:
    stage.deploy(1)
    stage.bench.user.post("/v1/triggers", json=trigger_body(0, 9))
    stage.bench.live.drain()
    attempt = stage.bench.claimed(tasks_of(stage, "keep")[0])
    stage.deploy(2)
    stage.deploy(3)
    stage.sweep()
    stage.age_retired(31)
    assert stage.sweep() == 2  # the tables of `follow`
    stage.bench.complete(attempt, "Canceled")
    assert stage.sweep() == 1


def test_only_the_sink_may_ask_and_only_about_tables_of_datasets(
    stage: Stage,
) -> None:
    url = "/internal/tables-to-drop"
    assert stage.bench.http.post(url, json={"tables": []}).status_code == 401
    token = stage.bench.sink_headers
    bad = stage.bench.http.post(url, json={"tables": ["followers"]}, headers=token)
    assert bad.status_code == 422
    unknown = hot_table(uuid4(), uuid4())
    reply = stage.bench.http.post(url, json={"tables": [unknown]}, headers=token)
    assert reply.json() == {"retired": []}


# --- dropping one table -----------------------------------------------------------------------


@pytest.fixture
def target(templates: Templates) -> Generator[tuple[str, AppendTarget]]:
    with copied(templates) as dsns:
        made = AppendTarget(
            hot_table(uuid4(), version := uuid4()), SCHEMA, ("n",), version, uuid4(), 1
        )
        with connection.connect(dsns.data) as conn, connection.transaction(conn):
            appends.create_staging(conn, made)
            appends.merge_rows(conn, made)
        yield dsns.data, made


def drop_table(dsn: str, target: AppendTarget) -> bool:
    with connection.connect(dsn) as conn:
        return retired_tables.drop_tables(conn, [target.table], [target.dataset_version])


def test_a_recently_written_table_is_not_dropped(
    target: tuple[str, AppendTarget],
) -> None:
    dsn, made = target
    assert not drop_table(dsn, made)
    sql(dsn, "UPDATE append_fences SET updated_at = now() - interval '2 hours'")
    assert drop_table(dsn, made)
    assert sql(dsn, "SELECT 1 FROM append_fences") == []
    assert drop_table(dsn, made)  # a repeated drop changes nothing


def test_a_table_in_use_is_not_dropped(target: tuple[str, AppendTarget]) -> None:
    dsn, made = target
    sql(dsn, "UPDATE append_fences SET updated_at = now() - interval '2 hours'")
    with psycopg.connect(dsn) as reader:
        reader.execute(f"SELECT * FROM {made.table}")
        assert not drop_table(dsn, made)
        reader.rollback()
        assert drop_table(dsn, made)
