"""Postgres state is stopped for longer than a lease: live attempts survive, silent ones end."""

import time
from collections.abc import Generator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.waiting import eventually
from trace_etl.data import migrations as data_migrations
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.queues.pgqueue import PgQueue
from trace_etl.state.db import migrations

LEASE = 8


class Outage:
    """A Dispatcher with its own Postgres, which the test stops."""

    def __init__(self, postgres: EmbeddedPostgres, made: Bench) -> None:
        self.postgres = postgres
        self.bench = made

    def last_pass(self) -> datetime:
        (row,) = self.bench.rows("SELECT seen_at FROM lease_clock")
        return row["seen_at"]

    def wait_for_pass(self) -> None:
        before = self.last_pass()
        eventually(lambda: self.last_pass() > before, "the lease reaper passes")


@pytest.fixture
def outage(secrets: Secrets, tmp_path: Path) -> Generator[Outage]:
    postgres = EmbeddedPostgres(
        tmp_path / "postgres", settings={"shared_buffers": "16MB", "fsync": "off"}
    )
    try:
        dsns = databases.provision(postgres.start())
        migrations.apply(dsns.state)
        data_migrations.apply(dsns.data)
        PgQueue(dsns.queue).prepare()
        # Without grace, only the time of the outage is added to a lease.
        grace = {"reaper_grace": timedelta(0)}
        with (
            live(secrets, dsns, tmp_path / "objects", loops=True, **grace) as running,
            bench(running) as made,
        ):
            yield Outage(postgres, made)
    finally:
        postgres.stop()
        postgres.remove()


def test_attempts_survive_an_outage_that_is_longer_than_their_lease(outage: Outage) -> None:
    one = outage.bench
    dag = one.dag(f"heartbeat_timeout: {LEASE}s")
    body = {"dag": dag.name, "job": "request", "start": 0, "end": 99}
    assert one.user.post("/v1/triggers", json=body).status_code == 200
    eventually(lambda: len(one.waiting(dag, "work")) == 10, "the tasks are queued")
    attempts = [one.claimed(task_id) for task_id in one.waiting(dag, "work")]
    outage.wait_for_pass()
    assert {one.heartbeat(attempt).status_code for attempt in attempts} == {200}
    renewed = time.monotonic()
    outage.postgres.stop()
    eventually(lambda: time.monotonic() > renewed + LEASE + 3, "every lease has expired")
    outage.postgres.start()
    outage.wait_for_pass()  # before any heartbeat arrives
    *alive, silent = attempts
    assert {one.heartbeat(attempt).status_code for attempt in alive} == {200}
    ended = "SELECT task_id::text, cause FROM task_attempts WHERE cause IS NOT NULL"
    expected = [{"task_id": silent.task_id, "cause": "lease_expired"}]

    def is_silent_attempt_ended() -> bool:
        assert {one.heartbeat(attempt).status_code for attempt in alive} == {200}
        return one.rows(ended) == expected

    eventually(is_silent_attempt_ended, "the silent attempt ends")
    assert [one.row(attempt.task_id)["attempt"] for attempt in alive] == [1] * len(alive)
