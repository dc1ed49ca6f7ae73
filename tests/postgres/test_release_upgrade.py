"""Databases made by the last release migrate to today's schema, and their work continues.

`release/state.sql` and `release/data.sql` are dumps of the two databases of that release:
`pg_dump --inserts --rows-per-insert=500 --no-comments`, without comments and empty lines. They hold:

- `orders`: a DAG deployed twice, and a third deploy whose rollout has built one partition of three;
- `states`: a job with queued, running, failed, canceled and completed tasks, and an event and an
  invalidation that wait in the outbox;
- `held`: a paused job with two events that wait for it;
- `history`: a running backfill with one chunk of six completed;
- `sensors`: a buffered dataset with one written batch and one that waits in the queue.
"""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from support.dags.rollouts import RolloutDag
from support.data.buffered import SinkSetup, running_sink_on
from support.lifecycle.lifecycle import Bench
from support.services.dispatcher import Secrets
from support.services.postgres import ADVANCE_TRANSACTIONS, Templates, drop_database, sql
from trace_etl.data import migrations as data_migrations
from trace_etl.lite.postgres import databases
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.state.db import migrations

RELEASE = Path(__file__).parent / "release"


@pytest.fixture
def released(templates: Templates) -> Generator[databases.Dsns]:
    """The databases of the last release, not migrated."""
    server, suffix = templates.server, uuid4().hex[:12]
    state, data = f"released_state_{suffix}", f"released_data_{suffix}"
    readers = {state: [databases.READER], data: [databases.QUEUE, databases.DATA_READER]}
    owners = {state: databases.STATE, data: databases.DATA}
    try:
        for name, file in ((state, "state.sql"), (data, "data.sql")):
            databases.create_database(
                server, name, owner=owners[name], connect=readers[name], template="template0"
            )
            with psycopg.connect(server.admin_dsn(name)) as conn:
                conn.execute((RELEASE / file).read_text())
        made = databases.dsns(server, state=state, data=data)
        sql(made.state, ADVANCE_TRANSACTIONS)
        yield made
    finally:
        drop_database(server, state)
        drop_database(server, data)


@pytest.fixture
def migrated(released: databases.Dsns) -> databases.Dsns:
    migrations.apply(released.state)
    data_migrations.apply(released.data)
    PgQueue(released.queue).prepare()
    return released


@pytest.fixture
def world(migrated: databases.Dsns, secrets: Secrets, tmp_path: Path) -> Generator[SinkSetup]:
    with running_sink_on(migrated, secrets, tmp_path / "objects") as made:
        yield made


@pytest.fixture
def upgraded(world: SinkSetup) -> Bench:
    """A Dispatcher of today over the databases of the last release."""
    return world.bench


def statuses(bench: Bench, dag: str, job: str) -> dict[str, tuple[str, int]]:
    """Status and attempt of each task of a job, by partition."""
    found = bench.rows(
        """SELECT t.partition_key, t.status, t.attempt
             FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
            WHERE g.name = %s AND j.name = %s""",
        dag,
        job,
    )
    return {row["partition_key"]: (row["status"], row["attempt"]) for row in found}


def test_only_newer_migrations_are_applied_and_only_once(released: databases.Dsns) -> None:
    known = {name for (name,) in sql(released.state, "SELECT name FROM schema_migrations")}
    tasks = sql(released.state, "SELECT task_id, status, attempt FROM tasks ORDER BY 1")
    assert len(tasks) > 30
    assert not known & set(migrations.apply(released.state))
    assert migrations.apply(released.state) == []
    data_migrations.apply(released.data)
    assert data_migrations.apply(released.data) == []
    assert sql(released.state, "SELECT task_id, status, attempt FROM tasks ORDER BY 1") == tasks


def test_a_migrated_schema_equals_a_new_one(migrated: databases.Dsns, dsns: databases.Dsns) -> None:
    columns = """
        SELECT table_name, column_name, data_type, is_nullable, column_default
          FROM information_schema.columns WHERE table_schema = 'public'
           AND table_name NOT LIKE 'dataset\\_%' OR table_name = 'dataset_versions' ORDER BY 1, 2
    """
    routines = """
        SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid)
          FROM pg_proc p WHERE pronamespace = 'public'::regnamespace ORDER BY 1
    """
    indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
    for query in (columns, routines, indexes):
        assert sql(migrated.state, query) == sql(dsns.state, query)
    assert sql(migrated.data, columns) == sql(dsns.data, columns)


def test_a_queued_task_is_claimed_and_completed_and_its_event_is_routed(upgraded: Bench) -> None:
    story = RolloutDag(upgraded, "states")
    (task_id,) = story.queued("work")
    story.finish(task_id)
    upgraded.live.drain()
    assert upgraded.status(task_id) == "Completed"
    assert statuses(upgraded, "states", "after")["60-69"] == ("Queued", 1)


def test_an_event_that_waited_in_the_outbox_is_routed(upgraded: Bench) -> None:
    assert "50-59" not in statuses(upgraded, "states", "after")
    upgraded.live.drain()
    assert statuses(upgraded, "states", "after")["50-59"] == ("Queued", 1)
    assert upgraded.rows("SELECT 1 FROM outbox") == []


def test_running_and_failed_attempts_are_followed_by_the_next_attempt(upgraded: Bench) -> None:
    upgraded.rows("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    assert upgraded.reap() == 2
    upgraded.rows("UPDATE tasks SET retry_at = now() WHERE retry_at IS NOT NULL")
    upgraded.start_retries()
    assert statuses(upgraded, "states", "work") == {
        "0-9": ("Completed", 1),
        "10-19": ("Queued", 2),
        "20-29": ("Queued", 2),
        "30-39": ("Canceled", 1),
        "40-49": ("Failed", 3),
        "50-59": ("Completed", 1),
        "60-69": ("Queued", 1),
    }
    story = RolloutDag(upgraded, "states")
    story.finish_all("work", "after")
    built = ("0-9", "10-19", "20-29", "50-59", "60-69")
    assert statuses(upgraded, "states", "after") == dict.fromkeys(built, ("Completed", 1))


def test_an_invalidation_that_waited_in_the_outbox_is_processed(upgraded: Bench) -> None:
    RolloutDag(upgraded, "states").finish_all("work", "after")
    found = upgraded.user.get("/v1/invalidations", params={"dataset": "states_out"}).json()
    assert {item["reason"] for item in found["items"]} >= {"wrong prices"}
    assert upgraded.rows("SELECT 1 FROM outbox") == []
    reply = upgraded.user.post("/v1/datasets/states_out/invalidations", json={"start": 0, "end": 5})
    assert reply.status_code == 200, reply.text
    upgraded.live.drain()
    assert statuses(upgraded, "states", "after")["0-9"] == ("Queued", 1)


def test_a_rollout_in_progress_is_completed_and_rolled_back(upgraded: Bench) -> None:
    story = RolloutDag(upgraded, "orders")
    before = story.seen("done")
    assert story.rollout()["state"] != "complete"
    assert story.finish_all("work", "after") == 2
    assert story.swap()
    after = story.seen("done")
    assert (after[0] != before[0], after[1]) == (True, ["0-9", "10-19", "20-29"])
    assert story.roll_back().status_code == 200
    assert story.seen("done") == before
    story.deploy(last=4)
    assert story.finish_all("work", "after") == 3
    assert story.swap()


def test_a_pause_holds_until_it_is_ended(upgraded: Bench) -> None:
    upgraded.live.drain()
    assert statuses(upgraded, "held", "after") == {}
    assert upgraded.user.post("/v1/pauses/resume", json={"dag": "held"}).status_code == 200
    upgraded.live.drain()
    assert set(statuses(upgraded, "held", "after")) == {"0-9", "10-19"}


def test_a_backfill_continues_to_its_end(upgraded: Bench) -> None:
    story = RolloutDag(upgraded, "history")
    (backfill,) = upgraded.user.get("/v1/backfills").json()["items"]
    assert backfill["state"] == "running"
    assert story.finish_all("work") == 5
    upgraded.live.run(upgraded.live.service.feeder.feed_once)
    found = upgraded.user.get(f"/v1/backfills/{backfill['backfill_id']}").json()
    assert found["state"] == "complete"


def test_a_batch_that_waited_in_the_queue_is_written(world: SinkSetup) -> None:
    bench = world.bench
    (waiting,) = bench.rows("SELECT * FROM buffer_publishes WHERE sunk_at IS NULL")
    write_batch(bench, waiting["batch_uri"], [{"id": "b", "n": 3}])
    dataset = {key: str(waiting[key]) for key in ("dataset_uuid", "dataset_version")}
    assert world.values(dataset) == [("a", 1), ("b", 2)]
    world.show_hidden_messages()
    world.drain()
    assert world.values(dataset) == [("a", 1), ("b", 3)]


def write_batch(bench: Bench, uri: str, rows: list[dict[str, Any]]) -> None:
    path = bench.live.objects / uri.removeprefix("s3://")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))
