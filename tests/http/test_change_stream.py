"""`GET /v1/changes`: all changes of the caller's org, in order and without gaps."""

import json
import socket
import ssl
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from support.data.changes import following
from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.users import new_org, new_user
from support.waiting import eventually
from trace_etl.dispatcher.user_api.change_feed import ChangeFilter
from trace_etl.dispatcher.user_api.pages import encode_key
from trace_etl.dispatcher.user_api.routes import changes as route
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.state.feed.changes import ChangePosition


def statuses(events: list[Any], task_id: str) -> list[str]:
    return [e.data["status"] for e in events if e.kind == "task" and e.data["task_id"] == task_id]


def test_the_stream_shows_a_task_from_creation_to_its_committed_partition(shared: Bench) -> None:
    dag = shared.dag()
    with following(shared.user, dag=dag.name) as stream:
        assert next(stream).kind == "ready"
        (task_id,) = shared.tasks(1, dag=dag)
        events = stream.until("task", task_id=task_id, status="Queued")
        attempt = shared.claimed(task_id)
        events += stream.until("task", task_id=task_id, status="Running")
        published = shared.write_output(attempt)
        reply = shared.complete(attempt, datasets_published=[published])
        assert reply.status_code == 200, reply.text
        events += stream.until("dataset", dataset=dag.published)
    assert statuses(events, task_id) == ["Queued", "Running", "Completed"]
    commit = events[-1].data
    assert (commit["partition_key"], commit["row_count"], commit["task_id"]) == ("0-9", 3, task_id)
    assert {e.data["dag"] for e in events} == {dag.name}


def test_a_failure_shows_its_error_and_retry_time(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    with following(shared.user, dag=dag.name) as stream:
        next(stream)
        shared.complete(attempt, "Failed", error_code="x", error_message="bad day", retryable=True)
        change = stream.until("task", status="Failed")[-1].data
    assert (change["error_code"], change["error_message"]) == ("x", "bad day")
    assert change["retry_at"] is not None


def test_a_reconnecting_client_receives_every_change_once(shared: Bench) -> None:
    dag = shared.dag()
    with following(shared.user, dag=dag.name, kind="task") as stream:
        next(stream)
        first = shared.tasks(3, dag=dag)
        received = [next(stream) for _ in range(3)]
        position = stream.last_id
    attempts = [shared.claimed(task_id) for task_id in first]  # no client is connected
    with following(shared.user, position, dag=dag.name, kind="task") as stream:
        assert next(stream).kind == "ready"
        received += stream.until("task", task_id=attempts[-1].task_id, status="Running")
        shared.complete(attempts[0])
        received += stream.until("task", status="Completed")
    changes = [(e.data["task_id"], e.data["status"]) for e in received]
    assert len(changes) == len(set(changes))
    for task_id in first:
        assert (task_id, "Running") in changes


def test_a_client_can_resume_after_any_event(shared: Bench) -> None:
    """Also after an event in the middle of one transaction's changes."""
    dag = shared.dag()
    with following(shared.user, dag=dag.name) as stream:
        start = next(stream)
        shared.tasks(7, dag=dag)
        events = [next(stream) for _ in range(9)]  # the trigger, the split, and seven
    for n, event in enumerate([start, *events[:-1]]):
        with following(shared.user, event.id, dag=dag.name) as stream:
            next(stream)
            assert [next(stream).id for _ in events[n:]] == [e.id for e in events[n:]]


def test_the_stream_shows_no_changes_of_other_orgs_or_dags(shared: Bench) -> None:
    dag, other_dag = shared.dag(), shared.dag()
    with new_user(shared, "admin", org_id=new_org(shared)) as stranger:
        theirs = Bench(shared.live, shared.http, stranger)
        with following(stranger) as foreign, following(shared.user, dag=dag.name) as mine:
            next(foreign), next(mine)
            shared.tasks(1, dag=other_dag)
            shared.tasks(1, dag=dag)
            assert {e.data["dag"] for e in mine.until("task", job="work")} == {dag.name}
            their_dag = theirs.dag()
            theirs.tasks(1, dag=their_dag)
            received = foreign.until("task", job="work")
            assert {e.data["dag"] for e in received} == {their_dag.name}


def test_the_stream_shows_deploys_and_pauses(shared: Bench) -> None:
    with following(shared.user, kind=["deploy", "pause"]) as stream:
        next(stream)
        dag = shared.dag()
        change = stream.until("deploy", dag=dag.name)[-1].data
        current = shared.user.get(f"/v1/dags/{dag.name}").json()["dag_version"]
        assert change["dag_version"] == current
        job = "(SELECT job_id FROM jobs JOIN dags g USING (dag_id) WHERE g.name = %s"
        job += " AND jobs.name = 'work')"
        shared.rows(
            "INSERT INTO pauses (job_id, by_name, tier, reason)"
            f" VALUES ({job}, 'ada', 'normal', 'manual')",
            dag.name,
        )
        change = stream.until("pause", dag=dag.name)[-1].data
        assert (change["job"], change["paused"], change["by"]) == ("work", True, "ada")
        shared.rows(f"DELETE FROM pauses WHERE job_id = {job}", dag.name)
        assert stream.until("pause", dag=dag.name)[-1].data["paused"] is False


def test_changes_of_a_slow_transaction_are_not_lost_behind_a_fast_one(shared: Bench) -> None:
    """The stream waits for a transaction that started earlier and commits later."""
    dag = shared.dag()
    early, late = shared.tasks(2, dag=dag)
    cancel = "UPDATE tasks SET status = 'Canceled', finished_at = now() WHERE task_id = %s"
    with following(shared.user, dag=dag.name) as stream:
        next(stream)
        with psycopg.connect(shared.live.dsns.state) as slow:
            slow.execute(cancel, (early,))
            shared.rows(cancel, late)
            position = stream.last_id
            head, _ = shared.live.run(shared.live.service.changes.head)
            assert head.xid < int(slow.execute("SELECT pg_current_xact_id()::text").fetchone()[0])
        received = stream.until("task", task_id=late)
    assert [e.data["task_id"] for e in received] == [early, late]
    assert position


@pytest.mark.parametrize("bad", ["x", "W10", "bnVsbA", "WzEsMiwzLDRd"])
def test_an_invalid_event_id_is_refused(shared: Bench, bad: str) -> None:
    for reply in (
        shared.user.get("/v1/changes", headers={"Last-Event-ID": bad}),
        shared.user.get("/v1/changes", params={"after": bad}),
    ):
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid")


def test_a_position_deleted_by_retention_causes_a_reset(shared: Bench) -> None:
    with following(shared.user) as stream:
        old = next(stream).id
    dag = shared.dag()
    with following(shared.user) as stream:  # the deploy is before the end of the stream
        next(stream)
    aged = "UPDATE changes SET changed_at = now() - interval '60 days' WHERE dag = %s"
    shared.rows(aged, dag.name)
    shared.live.run(shared.live.service.retention.delete_once)
    assert shared.rows("SELECT 1 FROM changes WHERE dag = %s", dag.name) == []
    with following(shared.user, old) as stream:
        assert next(stream).kind == "reset"
        assert next(stream).kind == "ready"


def test_a_position_of_another_database_causes_a_reset(shared: Bench) -> None:
    ahead = encode_key((2**60, 3, "ffffffff-ffff-ffff-ffff-ffffffffffff", ""))
    with following(shared.user, ahead) as stream:
        assert [next(stream).kind for _ in range(2)] == ["reset", "ready"]


def test_a_stream_whose_client_left_before_its_first_page_ends(shared: Bench) -> None:
    feed = shared.live.service.changes

    async def read() -> list[object]:
        org = uuid4()
        feed.join(org, "ada")()
        pages = feed.pages(ChangeFilter(org), ChangePosition(0), heartbeat=1.0)
        return [page async for page in pages]

    assert shared.live.run(read) == []


def test_an_idle_stream_sends_heartbeats(shared: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "HEARTBEAT", 0.05)
    with shared.user.stream("GET", "/v1/changes", params={"dag": "none_such"}) as reply:
        lines = reply.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": heartbeat"


def test_a_stream_ends_when_its_user_is_disabled(
    shared: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "HEARTBEAT", 0.05)
    with new_user(shared, "reader") as reader:
        name = reader.get("/v1/me").json()["name"]
        with reader.stream("GET", "/v1/changes") as reply:
            lines = reply.iter_lines()
            next(lines)
            assert shared.user.post(f"/v1/users/{name}/disable").status_code == 200
            for _ in lines:  # the server ends the stream
                pass


@pytest.fixture
def limited(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> Generator[Bench]:
    """A Dispatcher with three streams, replicas of them for one user."""
    limits = {"changes_clients": 3, "changes_clients_per_user": 2}
    with (
        live(secrets, dsns, tmp_path / "objects", **limits) as running,
        bench(running) as own_bench,
    ):
        yield own_bench


def refusal(client: httpx.Client) -> tuple[int, str]:
    """Return the status and the error of a request for a stream that must be refused."""
    with client.stream("GET", "/v1/changes") as reply:
        assert reply.status_code != 200
        return reply.status_code, json.loads(reply.read())["detail"]


def test_streams_are_limited_for_each_user_and_in_total(limited: Bench) -> None:
    with new_user(limited, "reader") as other:
        with following(limited.user) as first, following(limited.user) as second:
            next(first), next(second)
            status, detail = refusal(limited.user)
            assert status == 429
            assert "2 times" in detail and "(TRACE_CHANGES_CLIENTS_PER_USER)" in detail
            with following(other) as third:
                next(third)
                status, detail = refusal(other)
                assert status == 503
                assert "3 clients" in detail and "(TRACE_CHANGES_CLIENTS)" in detail
        eventually(
            lambda: limited.live.service.changes.listeners == 0,
            "all clients disconnected",
        )
        with following(limited.user) as again:
            assert next(again).kind == "ready"


def test_streams_that_open_at_once_do_not_exceed_the_limit(limited: Bench) -> None:
    """Streams count from their request on, not from their first event."""
    ended = threading.Event()
    statuses: list[int] = []

    def listen() -> None:
        with limited.live.user() as client, client.stream("GET", "/v1/changes") as reply:
            statuses.append(reply.status_code)
            ended.wait(120)

    threads = [threading.Thread(target=listen) for _ in range(12)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(statuses) == 12, "every request was answered")
    ended.set()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * 2 + [429] * 10


def test_a_stop_ends_the_streams_immediately(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> None:
    ready, left = threading.Event(), []

    def listen(client: httpx.Client) -> None:
        with client, following(client) as stream:
            next(stream)
            ready.set()
            left.extend(stream.events)

    with live(secrets, dsns, tmp_path / "objects") as running:
        thread = threading.Thread(target=listen, args=(running.user(),))
        thread.start()
        assert ready.wait(120)
    thread.join(120)
    assert not thread.is_alive() and left == []


def test_a_client_that_does_not_read_is_dropped_and_others_continue(
    limited: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "SLOW_AFTER", 0.3)
    cfg = limited.live.cfg
    context = ssl.create_default_context(cafile=str(limited.live.secrets.ca))
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", cfg.api_port))
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as slow:
        token = limited.live.secrets.user_token
        request = f"GET /v1/changes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        slow.sendall(request.encode())
        eventually(
            lambda: limited.live.service.changes.listeners == 1,
            "one client is connected",
        )
        with following(limited.user) as good:
            next(good)
            dag = limited.dag()
            (task_id,) = limited.tasks(1, dag=dag)
            # More than all buffers between server and client can hold.
            fill = """
                INSERT INTO changes (org_id, kind, dag, body)
                SELECT org_id, 'deploy', 'noise', jsonb_build_object('x', repeat('y', 20000))
                  FROM orgs CROSS JOIN generate_series(1, 1000)
                 WHERE orgs.name = 'local'
            """
            limited.rows(fill)
            limited.claimed(task_id)
            good.until("task", task_id=task_id, status="Running")
            eventually(
                lambda: limited.live.service.changes.listeners == 1,
                "one client is connected",
            )


def test_a_stream_survives_the_end_of_all_postgres_sessions(
    limited: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "HEARTBEAT", 0.05)
    end = """
        SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()
    """
    dag = limited.dag()
    with following(limited.user, dag=dag.name) as stream:
        next(stream)
        for start in range(0, 50, 10):
            assert limited.rows(end)[0]["count"] > 0
            body = {"dag": dag.name, "job": "request", "start": start, "end": start + 9}
            assert limited.user.post("/v1/triggers", json=body).status_code == 200
            stream.until("task", partition_key=f"{start}-{start + 9}")


def test_a_replica_shows_changes_of_another_and_can_take_over_its_stream(
    replicas: list[Bench],
) -> None:
    here, there = replicas
    dag = here.dag()
    with following(there.user, dag=dag.name) as stream:
        next(stream)
        (task_id,) = here.tasks(1, dag=dag)
        received = stream.until("task", task_id=task_id, status="Queued")
        position = stream.last_id
    attempt = there.claimed(task_id)
    with following(here.user, position, dag=dag.name) as stream:
        next(stream)
        received += stream.until("task", task_id=task_id, status="Running")
        there.complete(attempt)
        received += stream.until("task", task_id=task_id, status="Completed")
    assert statuses(received, task_id) == ["Queued", "Running", "Completed"]


def test_no_change_of_concurrent_writers_is_lost(replicas: list[Bench]) -> None:
    here, there = replicas
    dag = here.dag()
    tasks = here.tasks(40, dag=dag)
    half = len(tasks) // 2

    def work(bench: Bench, mine: list[str]) -> None:
        with bench.live.internal() as http:
            for task_id in mine:
                reply = bench.claim(task_id, http=http).json()
                bench.complete(Attempt(reply), http=http)

    with following(here.user, dag=dag.name, kind="task") as stream:
        next(stream)
        threads = [
            threading.Thread(target=work, args=pair)
            for pair in ((here, tasks[:half]), (there, tasks[half:]))
        ]
        for thread in threads:
            thread.start()
        ended: set[str] = set()
        while len(ended) < len(tasks):
            change = next(stream)
            if change.data["status"] == "Completed":
                assert change.data["task_id"] not in ended
                ended.add(change.data["task_id"])
        for thread in threads:
            thread.join()
    assert ended == set(tasks)
