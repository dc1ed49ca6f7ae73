"""Pauses by people and by backpressure, over HTTPS and on the command line."""

from collections.abc import Generator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from support.dispatcher import Secrets, live
from support.lifecycle import Bench, bench
from support.postgres import Templates, copied
from support.pressure import Graph, balance, graph
from support.users import new_org, new_user
from trace_etl.cli.main import app
from trace_etl.lite import connection
from trace_etl.lite.home import Home


@pytest.fixture(scope="module")
def stand(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A database of its own: backpressure looks at every queue."""
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running, bench(running) as made:
        yield made


def pause(bench: Bench, dag: str, **fields: Any) -> httpx.Response:
    return bench.user.post("/v1/pauses", json={"dag": dag, **fields})


def resume(bench: Bench, dag: str, **fields: Any) -> dict[str, Any]:
    reply = bench.user.post("/v1/pauses/resume", json={"dag": dag, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def pauses(g: Graph) -> list[dict[str, Any]]:
    return g.bench.user.get("/v1/pauses", params={"dag": g.name}).json()["items"]


def test_a_paused_job_starts_nothing_and_gets_nothing_until_it_is_resumed(stand: Bench) -> None:
    g = graph(stand, {"work": "split", "after": "work"})
    g.feed(2)
    first, second = g.queued("work")
    running = stand.claimed(first)
    reply = pause(stand, g.name, job="work", reason="the node is down")
    assert (reply.status_code, reply.json()) == (200, {"dag": g.name, "jobs": ["work"]})
    (row,) = pauses(g)
    assert datetime.fromisoformat(row.pop("since")).tzinfo
    new_user = {"by": "local", "by_dag": None, "by_job": None, "reason": "the node is down"}
    assert row == {"dag": g.name, "job": "work", "tier": "normal", **new_user}
    assert stand.claim(second).json()["reason"] == "NotReady"
    said = stand.user.get(f"/v1/tasks/{second}").json()["reason"]
    assert said.startswith("paused by local (the node is down) since 20")
    g.finish(running)
    g.feed(3, first=2)
    assert g.queued("work") == [second]
    summary = stand.user.get("/v1/tasks/summary", params={"dag": g.name}).json()
    assert summary["pending_events"] == 3
    assert resume(stand, g.name, job="work") == {
        "dag": g.name,
        "jobs": ["work"],
        "still_paused": [],
    }
    stand.live.drain()
    assert len(g.queued("work")) == 4
    assert {m["task_id"] for m in stand.messages("ecs_python")} >= set(g.queued("work"))
    stand.claimed(second)


def test_a_whole_dag_is_paused_and_resumed_and_both_can_be_repeated(stand: Bench) -> None:
    g = graph(stand, {"work": "split"})
    assert pause(stand, g.name).json()["jobs"] == ["request", "split", "work"]
    since = [row["since"] for row in pauses(g)]
    assert pause(stand, g.name, reason="again").json()["jobs"] == ["request", "split", "work"]
    assert [row["since"] for row in pauses(g)] == since
    assert {row["reason"] for row in pauses(g)} == {"again"}
    kept = g.trigger(1)
    assert kept["deferred_by"] == "local (again)"
    assert resume(stand, g.name)["jobs"] == ["request", "split", "work"]
    assert resume(stand, g.name)["jobs"] == []
    stand.live.drain()
    assert len(g.queued("work")) == 1


def test_bulk_work_alone_can_be_paused(stand: Bench) -> None:
    g = graph(stand, {"work": "split"})
    g.feed(1)
    g.make_bulk("work")
    (held,) = g.queued("work")
    g.feed(1, first=1)
    (free,) = [task for task in g.queued("work") if task != held]
    assert pause(stand, g.name, job="work", tier="bulk").status_code == 200
    said = stand.user.get(f"/v1/tasks/{held}").json()["reason"]
    assert said.startswith("paused by local since ")
    assert "paused" not in stand.user.get(f"/v1/tasks/{free}").json()["reason"]
    assert stand.claim(held).json()["reason"] == "NotReady"
    stand.claimed(free)


def test_jobs_that_come_to_a_paused_dag_are_paused_too(stand: Bench) -> None:
    g = graph(stand, {"work": "split"})
    assert pause(stand, g.name, reason="repairs").status_code == 200
    graph(stand, {"work": "split", "after": "work"}, name=g.name)
    assert g.paused() == dict.fromkeys(("after", "request", "split", "work"), "normal")
    by = {item["job"]: (item["by"], item["reason"]) for item in pauses(g)}
    assert by["after"] == ("local", "repairs")
    jobs = stand.user.get("/v1/jobs", params={"dag": g.name}).json()["items"]
    assert {job["paused_by"] for job in jobs} == {"local (repairs)"}
    resume(stand, g.name, job="work")
    graph(stand, {"work": "split", "after": "work", "last": "after"}, name=g.name)
    assert g.paused().keys() == {"after", "last", "request", "split"}
    resume(stand, g.name)
    graph(stand, {"work": "split", "after": "work", "free": "after"}, name=g.name)
    assert g.paused() == {}


def test_jobs_that_come_to_a_dag_of_which_one_job_is_paused_are_free(stand: Bench) -> None:
    g = graph(stand, {"work": "split"})
    assert pause(stand, g.name, job="work").status_code == 200
    graph(stand, {"work": "split", "after": "work"}, name=g.name)
    assert g.paused() == {"work": "normal"}


def test_resuming_what_backpressure_holds_says_who_still_holds_it(stand: Bench) -> None:
    g = graph(stand, {"work": "split; max_queue_depth: 1"})
    g.feed(1)
    pause(stand, g.name, job="split")
    balance(stand)
    assert len(pauses(g)) == 3
    assert resume(stand, g.name, job="split")["still_paused"] == [
        {"job": "split", "by": f"backpressure of {g.name}.work", "tier": "bulk"}
    ]
    g.finish_queued("work", 1)
    balance(stand)
    assert pauses(g) == []


def test_pressure_shows_queues_trips_operators_and_what_is_deferred(stand: Bench) -> None:
    g = graph(stand, {"work": "split; max_queue_depth: 3", "side": "split; max_queue_age: 1h"})
    g.feed(3)
    balance(stand)
    seen = stand.user.get("/v1/pressure").json()
    queues = {q["job"]: q for q in seen["queues"] if q["dag"] == g.name}
    work, side = queues["work"], queues["side"]
    assert (work["normal"], work["bulk"], work["sheds"], work["reason"]) == (3, 0, "bulk", "depth")
    assert (work["measured"], work["threshold"], work["pausing"]) == (3, 3, 2)
    assert (side["max_queue_age"], side["sheds"], side["pausing"]) == (3600, None, 0)
    running = stand.claimed(g.queued("work")[0])
    loaded = {o["operator"]: o for o in stand.user.get("/v1/pressure").json()["operators"]}
    assert loaded["sql"]["running"] >= 1
    assert loaded["sql"]["cap"] is None
    stand.complete(running)
    told = stand.user.get("/metrics").text
    place = f'dag="{g.name}",job="work"'
    assert f'trace_queue_limit{{{place},of="depth"}} 3.0' in told
    assert f'trace_queue_pushes_back{{{place},reason="depth",sheds="bulk"}} 2.0' in told
    assert "trace_deferred_events 0.0" in told
    g.finish_queued("work", 2)
    balance(stand)


def test_pauses_are_paged_and_only_of_ones_own_org(stand: Bench) -> None:
    g = graph(stand, {"work": "split", "more": "work"})
    pause(stand, g.name)
    query: dict[str, Any] = {"dag": g.name, "limit": 3}
    first = stand.user.get("/v1/pauses", params=query).json()
    rest = stand.user.get("/v1/pauses", params={**query, "after": first["next"]}).json()
    jobs = [row["job"] for row in first["items"] + rest["items"]]
    assert (jobs, rest["next"]) == (["more", "request", "split", "work"], None)
    with new_user(stand, "writer", org_id=new_org(stand)) as stranger:
        assert stranger.get("/v1/pauses").json()["items"] == []
        assert stranger.post("/v1/pauses", json={"dag": g.name}).status_code == 404
        assert stranger.post("/v1/pauses/resume", json={"dag": g.name}).status_code == 404
        assert stranger.get("/v1/pressure").json()["queues"] == []
    assert len(pauses(g)) == 4


def test_readers_see_pauses_and_may_not_make_them(stand: Bench) -> None:
    g = graph(stand, {"work": "split"})
    with new_user(stand, "reader") as reader:
        assert reader.get("/v1/pressure").status_code == 200
        assert reader.post("/v1/pauses", json={"dag": g.name}).status_code == 403
        assert reader.post("/v1/pauses/resume", json={"dag": g.name}).status_code == 403


def test_nothing_is_paused_that_does_not_exist(stand: Bench) -> None:
    g = graph(stand, {"work": "split"})
    assert pause(stand, "nobody").status_code == 404
    unknown = pause(stand, g.name, job="nobody")
    assert unknown.status_code == 404
    assert "no job 'nobody' in a deployed DAG" in unknown.json()["detail"]


def test_the_command_line_pauses_shows_and_resumes(stand: Bench, tmp_path: Path) -> None:
    home = Home(tmp_path)
    cfg, secrets = stand.live.cfg, stand.live.secrets
    described = connection.describe(
        home, api=cfg.api_port, internal=cfg.internal_port, query=1, pid=1
    )
    own = replace(described, ca=str(secrets.ca), user_token=str(secrets.directory / "user.jwt"))
    connection.write(home.connection, own)

    def trace(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--home", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.output

    g = graph(stand, {"work": "split; max_queue_depth: 1"})
    assert trace("pause", g.name, "split", "--reason", "repairs").endswith(
        "Paused split. Events are kept; `trace resume` ends the pause.\n"
    )
    kept = trace("trigger", g.name, "request", "--range", "0-9")
    assert "Triggered" in kept
    stand.live.drain()
    shown = trace("pressure")
    assert f"{g.name}.split" in shown
    assert "repairs" in shown
    assert "1 events wait for paused jobs" in shown
    assert trace("resume", g.name, "split").endswith("Resumed split.\n")
    stand.live.drain()
    balance(stand)
    shown = trace("pressure")
    assert f"backpressure of {g.name}.work" in shown
    assert "queue depth 1, limit 1" in shown
    assert "bulk work" in shown
    said = trace("resume", g.name)
    assert f"split is still paused by backpressure of {g.name}.work." in said
    listed = {
        line.split()[1]: line for line in trace("jobs", g.name).splitlines() if g.name in line
    }
    assert f"bulk work only: backpressure of {g.name}.work" in listed["split"]
    assert "bulk work only" not in listed["work"]
    assert "bulk work only" in trace("job", g.name, "split")
    trace("pause", g.name, "request")
    assert "bulk work only" not in trace("jobs", g.name).split("request")[1].split("\n")[0]
    assert "Recorded the trigger" in trace("trigger", g.name, "request", "--range", "10-19")
