"""Notifications: found once, signed, delivered to a receiver that fails first, and listed."""

import hashlib
import hmac
import json
import threading
from collections.abc import Generator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.dispatcher.loops import notifier

SECRET = "the-secret"
DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: work
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [out]
    max_attempts: 1
    config: {{sql: "SELECT 1 FROM ranges"}}
    checks: [{{rows: {{min: 1}}, on_failure: warn}}]
publish:
  - {{name: {name}_out, from: {{job: work}}}}
notify:
  - {{name: failures, event: failure, url: "{url}", secret: {secret}}}
  - {{name: quality, event: check, url: "{url}", secret: {secret}, datasets: [{name}_out]}}
  - {{name: silence, event: late, after: 1h, url: "{url}", secret: {secret}}}
  - {{name: holes, event: gap, after: 1h, url: "{url}", secret: {secret}, datasets: [{name}_out]}}
"""

CHAIN = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: early, operator: cryo_ingest, inputs: [{{from: {{job: request}}}}], outputs: [logs],
     config: {{finality: provisional}}}}
  - {{name: sums, operator: sql, inputs: [{{from: {{job: early}}}}], outputs: [sums],
     config: {{sql: SELECT count(*) AS n FROM logs}}}}
  - {{name: follow, operator: block_follower, source: {{kind: always_on}}, outputs: [hot_blocks, hot_logs]}}
publish:
  - {{name: {name}_logs, from: {{job: early}}, hot: {{job: follow, output: hot_logs}}}}
notify:
  - {{name: deep, event: reorganisation, deeper_than: 2, url: "{url}", secret: {secret}}}
  - {{name: deep_logs, event: reorganisation, deeper_than: 9, datasets: [{name}_logs], url: "{url}",
     secret: {secret}}}
"""

# What a hostile receiver answers, byte by byte or without an end.
_ENDLESS = {
    "/head": (b"HTTP/1.1 200 OK\r\nx: ", b"y", 0.05),
    "/body": (b"HTTP/1.1 200 OK\r\n\r\n", b"y" * 65536, 0.0),
}


class Receiver:
    """An HTTP server that refuses the first deliveries, and has paths with hostile answers."""

    def __init__(self) -> None:
        self.refusals = 0
        self.ended = threading.Event()
        self.calls: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path in _ENDLESS:
                    self._send_until_closed(*_ENDLESS[self.path])
                    return
                outer.calls.append(({k.lower(): v for k, v in self.headers.items()}, body))
                refused = len(outer.calls) <= outer.refusals
                self.send_response(503 if refused else 204)
                self.end_headers()

            def _send_until_closed(self, start: bytes, piece: bytes, pause: float) -> None:
                self.close_connection = True
                with suppress(ConnectionError):
                    self.wfile.write(start)
                    while not outer.ended.wait(pause):
                        self.wfile.write(piece)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def receiver() -> Generator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.ended.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(scope="module")
def here(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """Run a Dispatcher with a secret. Its own, because a pass delivers the rules of every DAG."""
    directory: Path = tmp_path_factory.mktemp("notification-secrets")
    (directory / "hook").write_text(SECRET)
    objects = tmp_path_factory.mktemp("objects")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, secrets_dir=directory) as running,
        bench(running) as made,
    ):
        yield made


def deploy(here: Bench, url: str, secret: str = "hook", text: str = DAG) -> str:
    name = f"n_{uuid4().hex[:12]}"
    text = text.format(name=name, url=url, secret=secret)
    reply = here.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 200, reply.text
    return name


def run_pass(here: Bench) -> None:
    """Make every waiting delivery due, and run one pass."""
    here.rows("UPDATE notifications SET next_try_at = now() WHERE sent_at IS NULL")
    here.live.run(here.live.service.notifier.notify_once)


def listed(here: Bench, dag: str) -> list[dict[str, Any]]:
    return here.user.get("/v1/notifications", params={"dag": dag}).json()["items"]


def work_tasks(here: Bench, dag: str, *ranges: tuple[int, int]) -> list[str]:
    for start, end in ranges:
        body = {"dag": dag, "job": "request", "start": start, "end": end}
        assert here.user.post("/v1/triggers", json=body).status_code == 200
    here.live.drain()
    query = {"dag": dag, "job": "work", "status": "Queued"}
    items = here.user.get("/v1/tasks", params=query).json()["items"]
    return [t["task_id"] for t in sorted(items, key=lambda t: t["partition_key"])]


def test_a_failure_is_delivered_once_with_a_valid_signature_after_refusals(
    here: Bench, receiver: Receiver
) -> None:
    dag = deploy(here, receiver.url)
    (task_id,) = work_tasks(here, dag, (0, 9))
    reply = here.complete(
        here.claimed(task_id), "Failed", error_code="bad_rows", error_message="three bad rows"
    )
    assert reply.status_code == 200, reply.text
    receiver.refusals = 2
    for _ in range(3):
        run_pass(here)
    (item,) = listed(here, dag)
    assert (item["event"], item["tries"], item["sent_at"] is not None) == ("failure", 3, True)
    run_pass(here)
    assert len(receiver.calls) == 3, "the same failure was sent again"

    headers, body = receiver.calls[-1]
    assert {call[0]["x-trace-delivery"] for call in receiver.calls} == {item["notification_id"]}
    org = here.rows("SELECT org_id FROM dags WHERE name = %s", dag)[0]["org_id"]
    signed = f"{headers['x-trace-timestamp']}\n{item['notification_id']}\n{org}/{dag}/failures\n"
    digest = hmac.new(SECRET.encode(), signed.encode() + body, hashlib.sha256).hexdigest()
    assert headers["x-trace-signature"] == f"v2={digest}"
    sent = json.loads(body)
    assert sent["detail"]["task_id"] == task_id
    assert sent["detail"]["error_code"] == "bad_rows"


def publish(here: Bench, attempt: Attempt, *, passed: bool) -> None:
    checked = {
        "dataset_version": attempt.output["dataset_version"],
        "partition_key": attempt.scope["partition_key"],
        "name": "rows",
        "passed": passed,
        "checked_rows": 3,
        "failing_rows": 0,
        "message": "" if passed else "too few rows",
    }
    reply = here.complete(
        attempt,
        datasets_published=[here.write_output(attempt)],
        events=[attempt.event()],
        checks=[checked],
    )
    assert reply.status_code == 200, reply.text


def test_a_check_that_fails_is_sent_once_for_each_partition(
    here: Bench, receiver: Receiver
) -> None:
    dag = deploy(here, receiver.url)
    good, bad = work_tasks(here, dag, (0, 9), (10, 19))
    publish(here, here.claimed(good), passed=True)
    publish(here, here.claimed(bad), passed=False)
    run_pass(here)
    run_pass(here)
    [item] = listed(here, dag)
    assert item["rule"] == "quality"
    assert {k: item["detail"][k] for k in ("dataset", "partition_key", "check", "message")} == {
        "dataset": f"{dag}_out",
        "partition_key": "10-19",
        "check": "rows",
        "message": "too few rows",
    }
    assert len(receiver.calls) == 1


def test_late_data_and_gaps_are_found_when_they_are_old_enough(
    here: Bench, receiver: Receiver
) -> None:
    dag = deploy(here, receiver.url)
    for task_id in work_tasks(here, dag, (0, 9), (20, 29)):
        attempt = here.claimed(task_id)
        publish(here, attempt, passed=True)
    run_pass(here)
    assert not listed(here, dag), "the data is not old enough"

    here.rows("UPDATE partitions SET committed_at = now() - interval '2 hours'")
    here.rows("UPDATE dags SET deployed_at = now() - interval '3 hours' WHERE name = %s", dag)
    run_pass(here)
    run_pass(here)
    found = {item["rule"]: item["detail"] for item in listed(here, dag)}
    assert found.keys() == {"silence", "holes"}
    assert found["silence"]["dataset"] == f"{dag}_out"
    assert (found["holes"]["range_start"], found["holes"]["range_end"]) == (10, 19)
    assert len(receiver.calls) == 2


def tip_of(here: Bench, dag: str, job: str) -> Attempt:
    """Claim the waiting task of a job."""
    here.live.run(here.live.service.sources.supervise_once)
    here.live.drain()
    query = {"dag": dag, "job": job, "status": "Queued"}
    [item] = here.user.get("/v1/tasks", params=query).json()["items"]
    return here.claimed(item["task_id"])


def test_reorganisations_deeper_than_the_rule_are_found_in_tables_and_provisional_blocks(
    here: Bench, receiver: Receiver
) -> None:
    dag = deploy(here, receiver.url, text=CHAIN)
    follower = tip_of(here, dag, "follow")
    outputs = {o["name"]: o for o in follower.claimed["task"]["outputs"]}

    def replace(start: int, end: int, is_reorganisation: bool = True) -> None:
        """Report as a follower that blocks were replaced in each of its tables."""
        invalid = [
            {
                **{key: output[key] for key in ("dataset_uuid", "dataset_version")},
                **{"kind": "row_range", "start": start, "end": end},
                **{"is_reorganisation": is_reorganisation, "key": f"{start}-{end}-{name}"},
            }
            for name, output in outputs.items()
        ]
        assert here.events(follower, invalidations=invalid).status_code == 200

    def found() -> list[tuple[str, str, int, int]]:
        """Return rule, dataset, first block and depth of what is new."""
        run_pass(here)
        sent = [json.loads(body) for _, body in receiver.calls]
        receiver.calls.clear()
        return sorted(
            (s["rule"], s["detail"]["dataset"], s["detail"]["range_start"], s["detail"]["depth"])
            for s in sent
        )

    logs = f"{dag}_logs"
    replace(18, 19)
    assert found() == [], "two blocks are not deeper than two"
    replace(10, 16, is_reorganisation=False)
    assert found() == [], "the follower replaced them for another reason"
    replace(17, 19)
    assert found() == [("deep", logs, 17, 3)]
    # The same first block again, and less deep: another reorganisation.
    replace(15, 25)
    replace(15, 17)
    assert found() == [("deep", logs, 15, 3), ("deep", logs, 15, 11), ("deep_logs", logs, 15, 11)]

    work = {"dag": dag, "job": "request", "start": 0, "end": 9}
    assert here.user.post("/v1/triggers", json=work).status_code == 200
    for rows, provisional in ((7, True), (8, False)):
        attempt = tip_of(here, dag, "early")
        published = here.write_output(attempt, content=rows)
        here.add_verification(attempt, "aa" if provisional else "bb", provisional=provisional)
        reply = here.complete(attempt, datasets_published=[published], events=[attempt.event()])
        assert reply.status_code == 200, reply.text
        assert found() == (
            [] if provisional else [("deep", logs, 0, 10), ("deep_logs", logs, 0, 10)]
        )
        derived = tip_of(here, dag, "sums")
        published = here.write_output(derived, content=rows)
        assert here.complete(derived, datasets_published=[published]).status_code == 200
        assert found() == [], "what was built again is not another reorganisation"
    marks = here.user.get("/v1/invalidations", params={"is_reorganisation": True}).json()["items"]
    assert (dag, "sums") in {(mark["dag"], mark["job"]) for mark in marks}


def test_a_follower_that_is_not_published_notifies_under_the_name_of_its_output(
    here: Bench, receiver: Receiver
) -> None:
    start, end = CHAIN.index("publish:"), CHAIN.index("notify:")
    text = CHAIN[:start] + CHAIN[end:].partition("  - {{name: deep_logs")[0]
    dag = deploy(here, receiver.url, text=text)
    follower = tip_of(here, dag, "follow")
    invalid = {k: follower.output[k] for k in ("dataset_uuid", "dataset_version")}
    invalid |= {"kind": "row_range", "start": 5, "end": 9, "is_reorganisation": True, "key": "a"}
    assert here.events(follower, invalidations=[invalid]).status_code == 200
    run_pass(here)
    [item] = listed(here, dag)
    assert item["detail"]["dataset"] == f"{dag}.follow.{follower.output['name']}"


def test_a_table_of_a_follower_is_not_late_for_having_no_partitions(
    here: Bench, receiver: Receiver
) -> None:
    rule = '- {{name: silence, event: late, after: 1h, url: "{url}", secret: {secret}}}'
    table = "- {{name: {name}_hot, from: {{job: follow, output: hot_blocks}}}}"
    text = CHAIN.replace("notify:", f"  {table}\nnotify:\n  {rule}")
    dag = deploy(here, receiver.url, text=text)
    here.rows("UPDATE dags SET deployed_at = now() - interval '3 hours' WHERE name = %s", dag)
    run_pass(here)
    assert [item["detail"]["dataset"] for item in listed(here, dag)] == [f"{dag}_logs"]


def test_a_missing_secret_is_named_in_the_plan_and_in_the_failed_notification(
    here: Bench, receiver: Receiver
) -> None:
    text = DAG.format(name="unsigned", url=receiver.url, secret="nowhere")
    warnings = here.user.post("/v1/plans", json={"text": text}).json()["warnings"]
    assert any("the secret 'nowhere' is missing" in warning for warning in warnings)
    dag = deploy(here, receiver.url, "nowhere")
    (task_id,) = work_tasks(here, dag, (0, 9))
    here.complete(here.claimed(task_id), "Failed", error_code="bad_rows", error_message="bad")
    run_pass(here)
    here.rows("UPDATE notifications SET tries = 100 WHERE dag = %s", dag)
    run_pass(here)
    (item,) = listed(here, dag)
    assert item["failed_at"] is not None
    assert "nowhere" in item["last_error"]
    assert not receiver.calls


def test_hostile_receivers_do_not_delay_the_deliveries_of_others(
    here: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_TIMEOUT", 3.0)
    base = receiver.url.removesuffix("/hook")
    urls = ["http://xn--/", f"{base}/head", f"{base}/body", receiver.url]
    found = {url: deploy(here, url) for url in urls}
    for dag in found.values():
        (task_id,) = work_tasks(here, dag, (0, 9))
        here.complete(here.claimed(task_id), "Failed", error_code="bad_rows", error_message="bad")
    run_pass(here)
    items = {url: listed(here, dag)[0] for url, dag in found.items()}
    assert len(receiver.calls) == 1
    assert [items[url]["sent_at"] is not None for url in urls] == [False, False, True, True]
    assert "A-label" in items[urls[0]]["last_error"]
    assert items[urls[1]]["last_error"] == "the receiver did not answer within 3 s"
