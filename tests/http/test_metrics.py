"""`/metrics` of the Dispatcher, the scheduler and the Query Service: correct, scoped and cheap."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.lifecycle.lifecycle import Bench
from support.services.dispatcher import Secrets, live
from support.services.query import running_query_service
from support.users import new_org, new_user
from trace_etl.dispatcher.user_api.routes import metrics
from trace_etl.http.server.listeners import Listener, Tls, serve
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.lite.processes.ports import free_port
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.app import make_app
from trace_etl.scheduler.cron_trigger import CronTrigger
from trace_etl.state.feed import metrics as state_metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def no_metrics_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)


def parsed(reply: httpx.Response) -> Samples:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


def scrape(client: httpx.Client) -> Samples:
    return parsed(client.get("/metrics"))


def test_queued_and_running_tasks_are_shown_by_job_runtime_and_operator(own_bench: Bench) -> None:
    dag = own_bench.dag()
    first, *_ = own_bench.tasks(3, dag=dag)
    place = {"dag": dag.name, "job": "work"}
    runtime = own_bench.row(first)["runtime"]
    own_bench.rows("UPDATE tasks SET queued_at = now() - interval '1 h' WHERE task_id = %s", first)
    samples = scrape(own_bench.user)
    where = {**place, "runtime": runtime, "tier": "normal"}
    assert value(samples, "trace_queue_depth", **where) == 3
    assert 3600 <= value(samples, "trace_queue_oldest_seconds", **where) < 3700
    in_flight = value(samples, "trace_operator_in_flight", operator="sql")
    attempt = own_bench.claimed(first)
    samples = scrape(own_bench.user)
    assert value(samples, "trace_queue_depth", **where) == 2
    assert value(samples, "trace_tasks_running", **place) == 1
    assert value(samples, "trace_operator_in_flight", operator="sql") == in_flight + 1
    own_bench.complete(attempt, "Failed", error_code="x", retryable=True)
    assert value(scrape(own_bench.user), "trace_tasks_retrying", **place) == 1


def test_transitions_batches_and_calls_are_counted(own_bench: Bench) -> None:
    before = scrape(own_bench.user)
    attempt = own_bench.attempt()
    own_bench.complete(attempt)
    own_bench.http.get("/nowhere/special")
    after = scrape(own_bench.user)

    def more(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert (
        more("trace_task_transitions_total", to="Running") >= 2
    )  # the split task and the test's task
    assert more("trace_task_transitions_total", to="Completed") >= 2
    assert more("trace_task_transitions_total", to="Queued") >= 2
    assert more("trace_group_commit_size_count", writer="claim") == 1
    call = {"listener": "internal", "method": "POST", "status": "200"}
    assert more("trace_http_requests_total", route="/v1/task/complete", **call) == 1
    other = {"listener": "internal", "method": "other", "route": "other", "status": "404"}
    assert more("trace_http_requests_total", **other) == 1
    user = {"listener": "user", "method": "POST", "route": "/v1/triggers", "status": "200"}
    assert more("trace_http_requests_total", **user) == 1


def test_attempts_that_failed_because_of_wrong_answers_are_counted_once(own_bench: Bench) -> None:
    name, labels = "trace_rejected_answers_total", {"outcome": "failed"}
    before = value(scrape(own_bench.user), name, **labels)
    attempt = own_bench.attempt()
    for _ in range(2):  # the second one is a repeat
        own_bench.complete(attempt, "Failed", error_code="chain_mismatch", retryable=True)
    own_bench.complete(own_bench.attempt(), "Failed", error_code="other", retryable=True)
    assert value(scrape(own_bench.user), name, **labels) == before + 1


def test_reaps_are_counted_by_cause(own_bench: Bench) -> None:
    attempt = own_bench.attempt()
    cause = {"cause": "lease_expired"}
    before = value(scrape(own_bench.user), "trace_lease_reaps_total", **cause)
    own_bench.rows(
        "UPDATE tasks SET lease_expires_at = now() - interval '1 s' WHERE task_id = %s",
        attempt.task_id,
    )
    own_bench.live.run(own_bench.live.service.reaper.reap_once)
    assert value(scrape(own_bench.user), "trace_lease_reaps_total", **cause) == before + 1


def test_the_outbox_and_pauses_are_shown(own_bench: Bench) -> None:
    dag = own_bench.dag()
    own_bench.live.drain()
    body = {"dag": dag.name, "job": "request", "start": 0, "end": 9}
    own_bench.user.post("/v1/triggers", json=body)
    own_bench.rows(
        "INSERT INTO pauses (job_id, by_name, tier, reason) SELECT job_id, 'ada', 'bulk', 'manual'"
        " FROM jobs JOIN dags g USING (dag_id) WHERE g.name = %s AND jobs.name = 'work'",
        dag.name,
    )
    samples = scrape(own_bench.user)
    assert value(samples, "trace_outbox_rows", kind="route_event", state="pending") == 1
    paused = {"dag": dag.name, "job": "work", "tier": "bulk", "reason": "manual", "by": "ada"}
    assert value(samples, "trace_job_paused", **paused) == 1
    with new_user(own_bench, "reader", org_id=new_org(own_bench)) as stranger:
        assert not [key for key in scrape(stranger) if key[0] == "trace_outbox_rows"]


def test_a_reader_can_scrape_and_sees_only_its_own_org(own_bench: Bench) -> None:
    dag = own_bench.dag()
    own_bench.tasks(1, dag=dag)
    assert own_bench.user.get("/metrics", headers={"Authorization": ""}).status_code == 401
    with new_user(own_bench, "reader") as reader:
        assert dag.name in reader.get("/metrics").text
    with new_user(own_bench, "reader", org_id=new_org(own_bench)) as stranger:
        assert dag.name not in stranger.get("/metrics").text


def test_loops_are_timed(secrets: Secrets, dsns: Dsns, tmp_path: Path) -> None:
    with live(secrets, dsns, tmp_path / "objects", loops=True) as running, running.user() as user:
        while value(scrape(user), "trace_loop_seconds_count", loop="retry_scheduler") < 1:
            pass


# Full scans that a scrape may do; none of them may read historical rows.
_SCRAPED = ("tasks",)
_HISTORY = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, status, max_attempts,
                   timeout_seconds, lease_seconds, finished_at)
SELECT t.org_id, t.job_id, t.revision_id, t.runtime, 'history:' || n, 'Completed', 3, 60, 60, now()
  FROM (SELECT * FROM tasks WHERE status = 'Queued' LIMIT 1) t, generate_series(1, 20000) n
"""


def test_a_scrape_reads_live_rows_only(own_bench: Bench) -> None:
    own_bench.tasks(3)
    own_bench.rows(_HISTORY)
    own_bench.rows("VACUUM ANALYZE tasks")
    org = "00000000-0000-0000-0000-000000000001"
    with psycopg.connect(own_bench.live.dsns.state) as conn:
        for query in (state_metrics._QUEUES, state_metrics._RUNNING, state_metrics._RETRYING):
            explained = conn.execute(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", {"org_id": org}
            ).fetchone()
            assert explained is not None
            plan: Any = explained[0] if isinstance(explained[0], list) else json.loads(explained[0])
            assert read(plan[0]["Plan"]) < 100, plan


def read(node: dict[str, Any]) -> float:
    """Return the rows of `tasks` that a plan read, including filtered ones."""
    mine = 0.0
    if node.get("Relation Name") in _SCRAPED:
        mine = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        mine += node.get("Rows Removed by Index Recheck", 0)
    return mine + sum(read(child) for child in node.get("Plans", []))


def test_the_query_service_shows_query_counts_only_to_its_users(
    own_bench: Bench, secrets: Secrets, tmp_path: Path
) -> None:
    with (
        running_query_service(secrets, own_bench.live.dsns, tmp_path / "objects") as service,
        service.client() as client,
    ):
        before = scrape(client)
        assert client.post("/v1/query", json={"sql": "SELECT 1"}).status_code == 200
        assert client.post("/v1/query", json={"sql": "DROP TABLE x"}).status_code == 422
        after = scrape(client)
        assert value(after, "trace_queries_total", code="ok") == 1 + value(
            before, "trace_queries_total", code="ok"
        )
        assert value(after, "trace_query_slots_free") == service.cfg.query_slots
        assert client.get("/metrics", headers={"Authorization": ""}).status_code == 401


async def test_the_scheduler_checks_scrape_tokens_with_the_dispatcher(
    own_bench: Bench, secrets: Secrets
) -> None:
    dispatcher = own_bench.live
    url, port, stop = f"https://127.0.0.1:{dispatcher.cfg.api_port}", free_port(), asyncio.Event()
    token_file = secrets.directory / "user.jwt"
    async with DispatcherApi(url, secrets.ca, token_file) as api:
        trigger = CronTrigger(api, timedelta(seconds=30), timedelta(seconds=90))
        listener = Listener(make_app(api, trigger), "127.0.0.1", port)
        tls = Tls(dispatcher.cfg.tls_cert, dispatcher.cfg.tls_key)
        postgres_server = asyncio.create_task(serve([listener], tls=tls, stop=stop))
        trust = dispatcher.user()  # the same CA signed both certificates
        reply = await asyncio.to_thread(_scrape, trust, port)
        assert "trace_scheduler_jobs 0.0" in reply.text
        refused = await asyncio.to_thread(_scrape, trust, port, {"Authorization": "Bearer x"})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        trust.close()
        stop.set()
        await postgres_server


def _scrape(
    client: httpx.Client, port: int, headers: dict[str, str] | None = None
) -> httpx.Response:
    while True:
        try:
            return client.get(f"https://127.0.0.1:{port}/metrics", headers=headers or {})
        except httpx.ConnectError:
            continue
