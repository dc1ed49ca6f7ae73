"""Pauses by users and by backpressure, over HTTPS and on the command line."""

from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from support.cli import connected_cli
from support.dags.pressure import Graph, balance, graph
from support.lifecycle.lifecycle import Bench
from support.users import new_org, new_user


def pause(bench: Bench, dag: str, **fields: Any) -> httpx.Response:
    return bench.user.post("/v1/pauses", json={"dag": dag, **fields})


def resume(bench: Bench, dag: str, **fields: Any) -> dict[str, Any]:
    reply = bench.user.post("/v1/pauses/resume", json={"dag": dag, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def pauses(g: Graph) -> list[dict[str, Any]]:
    return g.bench.user.get("/v1/pauses", params={"dag": g.name}).json()["items"]


def test_a_paused_job_starts_and_receives_no_tasks_until_it_is_resumed(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split", "after": "work"})
    g.feed(2)
    first, second = g.queued("work")
    running = own_bench.claimed(first)
    reply = pause(own_bench, g.name, job="work", reason="the node is down")
    assert (reply.status_code, reply.json()) == (200, {"dag": g.name, "jobs": ["work"]})
    (row,) = pauses(g)
    assert datetime.fromisoformat(row.pop("since")).tzinfo
    by_user = {"by": "local", "by_dag": None, "by_job": None, "reason": "the node is down"}
    assert row == {"dag": g.name, "job": "work", "tier": "normal", **by_user}
    assert own_bench.claim(second).json()["reason"] == "NotReady"
    reason = own_bench.user.get(f"/v1/tasks/{second}").json()["reason"]
    assert reason.startswith("paused by local (the node is down) since 20")
    g.finish(running)
    g.feed(3, first=2)
    assert g.queued("work") == [second]
    summary = own_bench.user.get("/v1/tasks/summary", params={"dag": g.name}).json()
    assert summary["pending_events"] == 3
    assert resume(own_bench, g.name, job="work") == {
        "dag": g.name,
        "jobs": ["work"],
        "still_paused": [],
    }
    own_bench.live.drain()
    assert len(g.queued("work")) == 4
    assert {m["task_id"] for m in own_bench.messages("ecs_python")} >= set(g.queued("work"))
    own_bench.claimed(second)


def test_a_dag_is_paused_and_resumed_and_both_calls_can_be_repeated(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split"})
    assert pause(own_bench, g.name).json()["jobs"] == ["request", "split", "work"]
    since = [row["since"] for row in pauses(g)]
    assert pause(own_bench, g.name, reason="again").json()["jobs"] == ["request", "split", "work"]
    assert [row["since"] for row in pauses(g)] == since
    assert {row["reason"] for row in pauses(g)} == {"again"}
    deferred = g.trigger(1)
    assert deferred["deferred_by"] == "local (again)"
    assert resume(own_bench, g.name)["jobs"] == ["request", "split", "work"]
    assert resume(own_bench, g.name)["jobs"] == []
    own_bench.live.drain()
    assert len(g.queued("work")) == 1


def test_bulk_tasks_can_be_paused_separately(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split"})
    g.feed(1)
    g.make_bulk("work")
    (paused,) = g.queued("work")
    g.feed(1, first=1)
    (unpaused,) = [task for task in g.queued("work") if task != paused]
    assert pause(own_bench, g.name, job="work", tier="bulk").status_code == 200
    reason = own_bench.user.get(f"/v1/tasks/{paused}").json()["reason"]
    assert reason.startswith("paused by local since ")
    assert "paused" not in own_bench.user.get(f"/v1/tasks/{unpaused}").json()["reason"]
    assert own_bench.claim(paused).json()["reason"] == "NotReady"
    own_bench.claimed(unpaused)


def test_new_jobs_of_a_paused_dag_are_paused_too(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split"})
    assert pause(own_bench, g.name, reason="repairs").status_code == 200
    graph(own_bench, {"work": "split", "after": "work"}, name=g.name)
    assert g.paused() == dict.fromkeys(("after", "request", "split", "work"), "normal")
    by = {item["job"]: (item["by"], item["reason"]) for item in pauses(g)}
    assert by["after"] == ("local", "repairs")
    jobs = own_bench.user.get("/v1/jobs", params={"dag": g.name}).json()["items"]
    assert {job["paused_by"] for job in jobs} == {"local (repairs)"}
    resume(own_bench, g.name, job="work")
    graph(own_bench, {"work": "split", "after": "work", "last": "after"}, name=g.name)
    assert g.paused().keys() == {"after", "last", "request", "split"}
    resume(own_bench, g.name)
    graph(own_bench, {"work": "split", "after": "work", "free": "after"}, name=g.name)
    assert g.paused() == {}


def test_new_jobs_are_not_paused_if_only_one_job_of_the_dag_is(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split"})
    assert pause(own_bench, g.name, job="work").status_code == 200
    graph(own_bench, {"work": "split", "after": "work"}, name=g.name)
    assert g.paused() == {"work": "normal"}


def test_resuming_a_job_paused_by_backpressure_reports_the_remaining_pause(
    own_bench: Bench,
) -> None:
    g = graph(own_bench, {"work": "split; max_queue_depth: 1"})
    g.feed(1)
    pause(own_bench, g.name, job="split")
    balance(own_bench)
    assert len(pauses(g)) == 3
    assert resume(own_bench, g.name, job="split")["still_paused"] == [
        {"job": "split", "by": f"backpressure of {g.name}.work", "tier": "bulk"}
    ]
    g.finish_queued("work", 1)
    balance(own_bench)
    assert pauses(g) == []


def test_pressure_shows_queues_trips_operators_and_what_is_deferred(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split; max_queue_depth: 3", "side": "split; max_queue_age: 1h"})
    g.feed(3)
    balance(own_bench)
    pressure = own_bench.user.get("/v1/pressure").json()
    queues = {q["job"]: q for q in pressure["queues"] if q["dag"] == g.name}
    work, side = queues["work"], queues["side"]
    assert (work["normal"], work["bulk"], work["sheds"], work["reason"]) == (3, 0, "bulk", "depth")
    assert (work["measured"], work["threshold"], work["pausing"]) == (3, 3, 2)
    assert (side["max_queue_age"], side["sheds"], side["pausing"]) == (3600, None, 0)
    running = own_bench.claimed(g.queued("work")[0])
    loaded = {o["operator"]: o for o in own_bench.user.get("/v1/pressure").json()["operators"]}
    assert loaded["sql"]["running"] >= 1
    assert loaded["sql"]["cap"] is None
    own_bench.complete(running)
    metrics = own_bench.user.get("/metrics").text
    labels = f'dag="{g.name}",job="work"'
    assert f'trace_queue_limit{{{labels},of="depth"}} 3.0' in metrics
    assert f'trace_queue_pushes_back{{{labels},reason="depth",sheds="bulk"}} 2.0' in metrics
    assert "trace_deferred_events 0.0" in metrics
    g.finish_queued("work", 2)
    balance(own_bench)


def test_pauses_are_paged_and_limited_to_the_callers_org(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split", "more": "work"})
    pause(own_bench, g.name)
    query: dict[str, Any] = {"dag": g.name, "limit": 3}
    first = own_bench.user.get("/v1/pauses", params=query).json()
    rest = own_bench.user.get("/v1/pauses", params={**query, "after": first["next"]}).json()
    jobs = [row["job"] for row in first["items"] + rest["items"]]
    assert (jobs, rest["next"]) == (["more", "request", "split", "work"], None)
    with new_user(own_bench, "writer", org_id=new_org(own_bench)) as stranger:
        assert stranger.get("/v1/pauses").json()["items"] == []
        assert stranger.post("/v1/pauses", json={"dag": g.name}).status_code == 404
        assert stranger.post("/v1/pauses/resume", json={"dag": g.name}).status_code == 404
        assert stranger.get("/v1/pressure").json()["queues"] == []
    assert len(pauses(g)) == 4


def test_readers_can_list_pauses_but_not_create_them(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split"})
    with new_user(own_bench, "reader") as reader:
        assert reader.get("/v1/pressure").status_code == 200
        assert reader.post("/v1/pauses", json={"dag": g.name}).status_code == 403
        assert reader.post("/v1/pauses/resume", json={"dag": g.name}).status_code == 403


def test_pausing_an_unknown_dag_or_job_is_refused(own_bench: Bench) -> None:
    g = graph(own_bench, {"work": "split"})
    assert pause(own_bench, "missing").status_code == 404
    unknown = pause(own_bench, g.name, job="missing")
    assert unknown.status_code == 404
    assert "no job 'missing' in a deployed DAG" in unknown.json()["detail"]


def test_the_cli_pauses_shows_and_resumes_jobs(own_bench: Bench, tmp_path: Path) -> None:
    trace = connected_cli(own_bench, tmp_path)
    g = graph(own_bench, {"work": "split; max_queue_depth: 1"})
    assert trace("pause", g.name, "split", "--reason", "repairs").endswith(
        "Paused split. Events are kept; `trace resume` ends the pause.\n"
    )
    triggered = trace("trigger", g.name, "request", "--range", "0-9")
    assert "Triggered" in triggered
    own_bench.live.drain()
    output = trace("pressure")
    assert f"{g.name}.split" in output
    assert "repairs" in output
    assert "1 events wait for paused jobs" in output
    assert trace("resume", g.name, "split").endswith("Resumed split.\n")
    own_bench.live.drain()
    balance(own_bench)
    output = trace("pressure", "--wide")
    assert f"backpressure of {g.name}.work" in output
    assert "queue depth 1, limit 1" in output
    assert "bulk work" in output
    resumed = trace("resume", g.name)
    assert f"split is still paused by backpressure of {g.name}.work." in resumed
    listed = {
        line.split()[1]: line
        for line in trace("jobs", g.name, "--wide").splitlines()
        if g.name in line
    }
    assert f"bulk work only: backpressure of {g.name}.work" in listed["split"]
    assert "bulk work only" not in listed["work"]
    assert "bulk work only" in trace("job", g.name, "split")
    trace("pause", g.name, "request")
    assert (
        "bulk work only" not in trace("jobs", g.name, "--wide").split("request")[1].split("\n")[0]
    )
    assert "Recorded the trigger" in trace("trigger", g.name, "request", "--range", "10-19")
