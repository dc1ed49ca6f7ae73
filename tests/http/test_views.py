"""Calls that sum up several resources: overview, failures, graph, versions and the partition map."""

from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from support.dags.dags import FOLLOWER, HOT_AND_COMPACTED
from support.lifecycle.lifecycle import Bench, Dag
from support.waiting import eventually
from trace_etl.dispatcher.user_api.routes.data import partition_map
from trace_etl.dispatcher.user_api.routes.views import overview
from trace_etl.state.partitions import partition_map as stored_map


@pytest.fixture(autouse=True)
def no_overview_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "REST", 0.0)


def get(bench: Bench, path: str, **params: object) -> dict[str, Any]:
    reply = bench.user.get(path, params={k: str(v) for k, v in params.items()})
    assert reply.status_code == 200, reply.text
    return reply.json()


def complete(bench: Bench, task_id: str) -> None:
    attempt = bench.claimed(task_id)
    reply = bench.complete(
        attempt, datasets_published=[bench.write_output(attempt)], events=[attempt.event()]
    )
    assert reply.status_code == 200, reply.text


def fail(bench: Bench, task_id: str, code: str) -> None:
    fault = {"error_code": code, "error_message": f"{code} happened", "retryable": False}
    assert bench.complete(bench.claimed(task_id), "Failed", **fault).status_code == 200


@pytest.fixture(scope="module")
def built(shared: Bench) -> Dag:
    """Blocks 0-99 in tasks of ten: 0-49 and 70-79 committed, 50-59 failed, the rest queued."""
    dag = shared.dag()
    tasks = shared.tasks(10, dag=dag)
    ordered = sorted(tasks, key=lambda task: int(shared.row(task)["range_start"]))
    for task in [*ordered[:5], ordered[7]]:
        complete(shared, task)
    fail(shared, ordered[5], "bad_rows")
    shared.live.drain()
    return dag


# --- the partition map ----------------------------------------------------------------------------


def test_the_map_counts_partitions_and_covered_blocks_by_bucket(shared: Bench, built: Dag) -> None:
    found = get(shared, f"/v1/datasets/{built.published}/map", start=0, end=99, buckets=4)
    assert (found["first"], found["last"], found["state"]) == (0, 79, "current")
    assert found["partitions"] == [3, 2, 1, 0]  # by first block: 0 10 20 | 30 40 | 70 | -
    assert found["blocks"] == [25, 25, 5, 5]  # 70-79 reaches over the border of the buckets
    assert [p["partition_key"] for p in found["listed"]] == [
        *("0-9", "10-19", "20-29", "30-39", "40-49", "70-79")
    ]


def test_the_map_shows_unfinished_and_failed_tasks(shared: Bench, built: Dag) -> None:
    found = get(shared, f"/v1/datasets/{built.published}/map", start=0, end=99, buckets=10)
    tasks = {t["bucket"]: (t["queued"], t["running"], t["failed"]) for t in found["tasks"]}
    assert tasks == {5: (0, 0, 1), 6: (1, 0, 0), 8: (1, 0, 0), 9: (1, 0, 0)}


def test_a_window_inside_of_a_partition_is_covered_by_it(shared: Bench, built: Dag) -> None:
    found = get(shared, f"/v1/datasets/{built.published}/map", start=12, end=15, buckets=600)
    assert (found["buckets"], found["blocks"], found["partitions"]) == (4, [1] * 4, [0] * 4)
    assert [p["partition_key"] for p in found["listed"]] == ["10-19"]


def test_covered_blocks_are_exact_for_every_width(shared: Bench, built: Dag) -> None:
    committed = {*range(50), *range(70, 80)}
    for buckets in (1, 3, 7, 50, 99, 100):
        found = get(shared, f"/v1/datasets/{built.published}/map", start=0, end=99, buckets=buckets)
        bounds = [i * 100 // buckets for i in range(buckets + 1)]
        expected = [len(committed & set(range(a, b))) for a, b in pairwise(bounds)]
        assert found["blocks"] == expected, buckets


def test_a_partition_is_stale_after_its_input_was_replaced(shared: Bench) -> None:
    dag = shared.dag()
    (task,) = shared.tasks(1, dag=dag)
    complete(shared, task)
    shared.live.drain()
    (after,) = shared.waiting(dag, "after")
    attempt = shared.claimed(after)
    reply = shared.complete(attempt, datasets_published=[shared.write_output(attempt)])
    assert reply.status_code == 200, reply.text
    name = f"{dag.name}_done"
    shared.rows(
        "INSERT INTO publications (org_id, name, dataset_uuid) SELECT org_id, %s, dataset_uuid"
        " FROM datasets WHERE dataset_uuid = %s",
        name,
        attempt.output["dataset_uuid"],
    )
    assert [p["is_stale"] for p in get(shared, f"/v1/datasets/{name}/map")["listed"]] == [False]
    body = {"start": 0, "end": 9, "rebuild": True}
    path = f"/v1/datasets/{dag.published}/invalidations"
    assert shared.user.post(path, json=body).status_code == 200
    shared.live.drain()
    (rebuild,) = shared.waiting(dag, "work")
    assert sum(get(shared, f"/v1/datasets/{name}/map", buckets=3)["stale"]) == 0
    complete(shared, rebuild)
    assert [p["is_stale"] for p in get(shared, f"/v1/datasets/{name}/map")["listed"]] == [True]
    assert get(shared, f"/v1/datasets/{name}/map", buckets=3)["stale"] == [1, 0, 0]
    shared.live.drain()
    (again,) = shared.waiting(dag, "after")
    attempt = shared.claimed(again)
    reply = shared.complete(attempt, datasets_published=[shared.write_output(attempt)])
    assert reply.status_code == 200, reply.text
    assert get(shared, f"/v1/datasets/{name}/map", buckets=3)["stale"] == [0, 0, 0]


def test_the_map_shows_blocks_of_a_hot_table_and_their_reorganisations(shared: Bench) -> None:
    name = f"h_{uuid4().hex[:12]}"
    assert (
        shared.user.post("/v1/dags", json={"text": HOT_AND_COMPACTED.format(name=name)}).status_code
        == 200
    )
    shared.live.run(shared.live.service.sources.supervise_once)
    (task,) = get(shared, "/v1/tasks", dag=name, job="follow", status="Queued")["items"]
    follower = shared.claimed(task["task_id"])
    empty = get(shared, f"/v1/datasets/{name}_all/map")
    assert (empty["hot"], empty["first"]) == (None, None)
    assert shared.events(follower, follower.event(cursor=24)).status_code == 200
    shared.live.drain()
    shared.live.run(shared.live.service.numberer.number_once)
    for dataset in ("hot", "all"):
        found = get(shared, f"/v1/datasets/{name}_{dataset}/map")
        assert (found["first"], found["last"], found["blocks"]) == (0, 24, [0] * 25)
        assert (found["hot"]["job"], found["hot"]["start"], found["hot"]["end"]) == (
            "follow",
            0,
            24,
        )
    waiting = get(shared, "/v1/tasks", dag=name, job="compact", status="Queued")["items"]
    (first,) = [task["task_id"] for task in waiting if task["partition_key"] == "0-9"]
    complete(shared, first)
    output = {key: follower.output[key] for key in ("dataset_uuid", "dataset_version")}
    rewrite = {**output, "kind": "row_range", "start": 22, "end": 24, "is_reorganisation": True}
    assert shared.events(follower, invalidations=[rewrite]).status_code == 200
    found = get(shared, f"/v1/datasets/{name}_all/map", buckets=5)
    assert (found["first"], found["last"], found["blocks"]) == (0, 24, [5, 5, 0, 0, 0])
    assert (found["hot"]["start"], found["hot"]["end"]) == (10, 24)
    assert [(m["start"], m["is_reorganisation"]) for m in found["invalidations"]] == [(22, True)]


def test_a_window_lists_at_most_2000_partitions(
    shared: Bench, built: Dag, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, is_listed in ((6, True), (5, False)):
        monkeypatch.setattr(partition_map, "MAX_LISTED", limit)
        monkeypatch.setattr(stored_map, "MAX_LISTED", limit)
        found = get(shared, f"/v1/datasets/{built.published}/map", start=5, end=99)
        assert (found["listed"] is not None) == is_listed


def test_the_outline_of_a_dataset_agrees_with_its_details(shared: Bench, built: Dag) -> None:
    outline = get(shared, f"/v1/datasets/{built.published}/outline")
    detail = get(shared, f"/v1/datasets/{built.published}")
    same = [key for key in outline if key not in ("generations", "updated_at")]
    assert {key: outline[key] for key in same} == {key: detail[key] for key in same}
    names = [{key: g[key] for key in outline["generations"][0]} for g in detail["generations"]]
    assert outline["generations"] == names
    assert (outline["range_start"], outline["range_end"]) == (0, 79)
    fresh = get(shared, f"/v1/datasets/{shared.dag().published}/outline")
    assert (fresh["range_end"], fresh["updated_at"]) == (None, None)
    assert shared.user.get("/v1/datasets/no_such_dataset/outline").status_code == 404


_COUNTED = """
SELECT count(*) AS partitions, coalesce(sum(row_count), 0)::bigint AS row_count,
       coalesce(sum(byte_count), 0)::bigint AS byte_count, min(range_start) AS range_start,
       max(range_end) AS range_end
  FROM partitions WHERE dataset_version = %s
"""


def test_the_totals_of_a_dataset_equal_its_partitions(shared: Bench) -> None:
    dag = shared.dag()
    path = f"/v1/datasets/{dag.published}"
    version = get(shared, path)["dataset_version"]

    def check(gaps: list[list[int]]) -> dict[str, Any]:
        """Compare before and after the rows of the totals are merged."""
        (counted,) = shared.rows(_COUNTED, version)
        for _ in range(2):
            found = get(shared, path)
            (listed,) = get(shared, "/v1/datasets", name=dag.published)["items"]
            (generation,) = found["generations"]
            assert {key: found[key] for key in counted} == counted
            assert {key: listed[key] for key in counted} == counted
            assert generation.items() >= {key: counted[key] for key in list(counted)[:3]}.items()
            assert found["gaps"] == gaps
            shared.live.run(shared.live.service.task_counter.count_once)
        return counted

    assert check([])["partitions"] == 0
    by_block = sorted(shared.tasks(4, dag=dag), key=lambda task: shared.row(task)["range_start"])
    for task in (by_block[0], by_block[1], by_block[3]):
        complete(shared, task)
    before = check([[20, 29]])
    invalid = {"start": 10, "end": 19, "rebuild": True}
    assert shared.user.post(f"{path}/invalidations", json=invalid).status_code == 200
    shared.live.drain()
    (rebuild,) = [t for t in shared.waiting(dag, "work") if t != by_block[2]]
    attempt = shared.claimed(rebuild)
    rewritten = shared.write_output(attempt, 77)
    assert shared.complete(attempt, datasets_published=[rewritten]).status_code == 200
    after = check([[20, 29]])
    assert after["partitions"] == before["partitions"]
    assert after["row_count"] != before["row_count"]
    complete(shared, by_block[2])
    check([])
    shared.rows("DELETE FROM partitions WHERE dataset_version = %s RETURNING 1", version)
    check([])
    left = "SELECT count(*) FROM generation_totals WHERE dataset_version = %s"
    assert shared.rows(left, version) == [{"count": 0}]


def test_every_count_can_be_listed_with_a_filter(shared: Bench) -> None:
    dag = shared.dag()
    first, second = sorted(shared.tasks(2, dag=dag), key=lambda t: shared.row(t)["range_start"])
    complete(shared, first)
    fault = {"error_code": "node_down", "error_message": "no answer", "retryable": True}
    assert shared.complete(shared.claimed(second), "Failed", **fault).status_code == 200

    def listed(path: str = "/v1/tasks", **filters: object) -> list[Any]:
        items = get(shared, path, dag=dag.name, **filters)["items"]
        return [item.get("task_id") or item["partition_key"] for item in items]

    job = get(shared, f"/v1/jobs/{dag.name}/work")
    assert (job["failed"], job["retrying"]) == (0, 1)
    assert listed(status="Failed", retrying=True) == [second]
    assert listed(status="Failed", retrying=False) == []
    finished = get(shared, f"/v1/tasks/{first}")["finished_at"]
    assert listed(job="work", finished_after=finished) == []
    assert listed(job="work", finished_after="2020-01-01T00:00:00Z", status="Completed") == [first]
    assert shared.user.get("/v1/tasks", params={"finished_after": "2020-01-01"}).status_code == 422

    pause = {"dag": dag.name, "job": "after"}
    assert shared.user.post("/v1/pauses", json=pause).status_code == 200
    shared.live.drain()
    assert listed("/v1/events", job="work", deferred=True) == ["0-9"]
    assert "0-9" not in listed("/v1/events", job="work", deferred=False)
    assert shared.user.post("/v1/pauses/resume", json=pause).status_code == 200
    shared.live.drain()
    assert listed("/v1/events", deferred=True) == []

    complete(shared, shared.waiting(dag, "after")[0])
    invalid = {"start": 0, "end": 9, "rebuild": False}
    path = f"/v1/datasets/{dag.published}/invalidations"
    assert shared.user.post(path, json=invalid).status_code == 200
    shared.live.drain()
    (made,) = get(shared, "/v1/invalidations", dataset=dag.published)["items"]
    again = listed(invalidation_id=made["invalidation_id"])
    assert (len(again), made["tasks"]) == (1, 1)
    assert shared.row(again[0])["invalidation_id"] is not None
    assert listed(invalidation_id=uuid4()) == []


def test_the_map_of_an_empty_dataset_is_empty(shared: Bench) -> None:
    found = get(shared, f"/v1/datasets/{shared.dag().published}/map")
    assert (found["first"], found["partitions"], found["listed"]) == (None, [0], [])


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"start": 5, "end": 4}, 422),
        ({"buckets": 0}, 422),
        ({"buckets": 2001}, 422),
        ({"dataset_version": str(uuid4())}, 404),
    ],
)
def test_a_wrong_window_is_refused(
    shared: Bench, built: Dag, params: dict[str, Any], status: int
) -> None:
    reply = shared.user.get(f"/v1/datasets/{built.published}/map", params=params)
    assert reply.status_code == status, reply.text


# --- the graph ------------------------------------------------------------------------------------


def test_the_graph_has_every_job_with_its_counts(shared: Bench, built: Dag) -> None:
    graph = get(shared, f"/v1/dags/{built.name}/graph")
    nodes = {node["job"]: node for node in graph["nodes"]}
    assert set(nodes) == {"request", "split", "work", "after"}
    counts = {k: nodes["work"][k] for k in ("queued", "running", "completed", "failed")}
    assert counts == {"queued": 3, "running": 0, "completed": 6, "failed": 1}
    edges = {(e["from_job"], e["to_job"]): e for e in graph["edges"]}
    assert set(edges) == {("request", "split"), ("split", "work"), ("work", "after")}
    assert edges["work", "after"]["dataset"] == built.published


def test_the_graph_shows_jobs_of_other_dags_and_pauses(shared: Bench, built: Dag) -> None:
    reader = f"r_{uuid4().hex[:12]}"
    text = f"""
name: {reader}
jobs:
  - name: read
    operator: sql
    inputs: [{{name: out, from: {{dataset: {built.published}}}}}]
    outputs: [rows]
    config: {{sql: "SELECT 1 FROM out"}}
"""
    reply = shared.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 200, reply.text
    pause = {"dag": reader, "job": "read", "reason": "maintenance"}
    assert shared.user.post("/v1/pauses", json=pause).status_code == 200
    graph = get(shared, f"/v1/dags/{built.name}/graph")
    assert (reader, "read") in {(n["dag"], n["job"]) for n in graph["nodes"]}
    assert [(p["dag"], p["reason"]) for p in graph["pauses"]] == [(reader, "maintenance")]
    assert shared.user.get(f"/v1/dags/{reader}x/graph").status_code == 404


# --- overview, failures, versions ------------------------------------------------------------------


def test_the_overview_counts_what_runs_waits_and_failed(shared: Bench, built: Dag) -> None:
    before = get(shared, "/v1/overview")
    first, second, third = shared.tasks(3, dag=shared.dag())
    complete(shared, first)
    fail(shared, second, "broken")
    shared.claimed(third)
    after = get(shared, "/v1/overview")
    grown = {k: after[k] - before[k] for k in ("dags", "jobs", "running", "failed")}
    assert grown == {"dags": 1, "jobs": 4, "running": 1, "failed": 1}
    assert after["failed_last_hour"] == before["failed_last_hour"] + 1
    assert after["completed_last_hour"] > before["completed_last_hour"]
    assert sum(m["completed"] for m in after["minutes"]) == after["completed_last_hour"]


def follow(shared: Bench) -> str:
    name = f"f_{uuid4().hex[:12]}"
    reply = shared.user.post("/v1/dags", json={"text": FOLLOWER.format(name=name)})
    assert reply.status_code == 200, reply.text
    shared.live.run(shared.live.service.sources.supervise_once)
    return name


def show_chain(shared: Bench, name: str) -> dict[str, Any]:
    (chain,) = [c for c in get(shared, "/v1/overview")["chains"] if c["dag"] == name]
    return chain


def test_the_overview_shows_how_far_a_followed_chain_is(shared: Bench) -> None:
    name = follow(shared)
    chain = show_chain(shared, name)
    assert (chain["job"], chain["status"], chain["cursor"]) == ("follow", "Queued", None)
    assert (chain["head"], chain["lag_blocks"], chain["silent_seconds"]) == (None, None, None)
    attempt = shared.claimed(chain["task_id"])
    head = {"head": 90, "head_time": 1_700_001_000}
    position = {"position": 70, "position_time": 1_700_000_800}
    assert shared.events(attempt, chain_head={**head, **position}).status_code == 200
    assert shared.events(attempt, attempt.event(cursor=69)).status_code == 200
    chain = show_chain(shared, name)
    assert (chain["cursor"], chain["position"], chain["head"]) == (69, 70, 90)
    assert (chain["lag_blocks"], chain["lag_seconds"]) == (20, 200)
    assert chain["silent_seconds"] < 60
    output = {key: attempt.output[key] for key in ("dataset_uuid", "dataset_version")}
    rewrite = {**output, "kind": "row_range", "start": 68, "end": 70, "is_reorganisation": True}
    assert shared.events(attempt, invalidations=[rewrite]).status_code == 200
    assert show_chain(shared, name)["reorganisations"] == 1
    lag = f'trace_chain_lag_blocks{{dag="{name}",job="follow"}} 20.0'
    eventually(
        lambda: lag in shared.user.get("/metrics").text, "a scrape that is not from the cache"
    )


def test_an_attempt_without_its_lease_reports_no_head(shared: Bench) -> None:
    name = follow(shared)
    attempt = shared.claimed(show_chain(shared, name)["task_id"])
    take = "UPDATE tasks SET lease_token = gen_random_uuid() WHERE task_id = %s RETURNING 1"
    assert shared.rows(take, attempt.task_id)
    refused = shared.events(attempt, chain_head={"head": 90, "head_time": 1_700_001_000})
    assert refused.status_code == 409, refused.text
    assert show_chain(shared, name)["head"] is None


def list_problems(shared: Bench, name: str) -> list[str]:
    problems = get(shared, "/v1/overview")["problems"]
    return [problem["kind"] for problem in problems if problem["dag"] == name]


def test_health_names_a_chain_that_stopped_is_silent_or_lags(shared: Bench) -> None:
    name = follow(shared)
    assert list_problems(shared, name) == ["chain_stopped"]
    task_id = show_chain(shared, name)["task_id"]
    attempt = shared.claimed(task_id)
    assert list_problems(shared, name) == []
    shared.rows(
        "UPDATE tasks SET started_at = now() - interval '5 min' WHERE task_id = %s", task_id
    )
    assert list_problems(shared, name) == ["chain_silent"]
    head = {"head": 90, "head_time": 1_700_001_000, "position": 70, "position_time": 1_700_000_800}
    assert shared.events(attempt, chain_head=head).status_code == 200
    assert list_problems(shared, name) == ["chain_lagging"]
    at_head = {**head, "position": 90, "position_time": head["head_time"]}
    assert shared.events(attempt, chain_head=at_head).status_code == 200
    assert list_problems(shared, name) == []


def test_health_names_a_runtime_without_workers_and_a_lost_worker(shared: Bench) -> None:
    shared.tasks(2, dag=shared.dag())
    overview = get(shared, "/v1/overview")
    found = [p for p in overview["problems"] if p["kind"] == "runtime_without_workers"]
    (runtime,) = [p for p in found if p["runtime"] == "ecs_python"]
    assert runtime["count"] >= 2
    assert overview["is_healthy"] is False


def test_failures_are_grouped_by_job_and_error(shared: Bench) -> None:
    dag = shared.dag()
    one, two, three = shared.tasks(3, dag=dag)
    fail(shared, one, "rpc_refused")
    fail(shared, two, "rpc_refused")
    fail(shared, three, "bad_rows")
    groups = get(shared, "/v1/failures", dag=dag.name)["items"]
    found = {g["error_code"]: g for g in groups}
    assert {code: g["tasks"] for code, g in found.items()} == {"rpc_refused": 2, "bad_rows": 1}
    assert found["rpc_refused"]["task_id"] == two
    assert found["bad_rows"]["error_message"] == "bad_rows happened"
    listed = get(shared, "/v1/tasks", dag=dag.name, error_code="rpc_refused")["items"]
    assert {task["task_id"] for task in listed} == {one, two}


def plan_jobs(shared: Bench, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = shared.user.post("/v1/plans", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["plan"]["names"] == []
    return reply.json()["plan"]["jobs"]


def test_versions_of_a_dag_can_be_read_and_planned(shared: Bench) -> None:
    dag = shared.dag(column="1")
    shared.dag(name=dag.name, column="2")
    versions = get(shared, f"/v1/dags/{dag.name}/versions")["items"]
    assert [v["is_current"] for v in versions] == [True, False]
    old = get(shared, f"/v1/dags/{dag.name}/versions/{versions[1]['dag_version']}")
    assert "SELECT 1 FROM ranges" in old["text"]
    plan = shared.user.post("/v1/plans", json={"text": old["text"]}).json()
    changed = {job["name"] for job in plan["plan"]["jobs"] if job["change"] == "changed"}
    assert changed == {"work"}
    new, old = (version["dag_version"] for version in versions)
    text = get(shared, f"/v1/dags/{dag.name}/versions/{new}")["text"]
    again = {"text": text, "from_version": new}
    (job,) = [j for j in plan_jobs(shared, {"text": text, "from_version": old}) if j["fields"]]
    assert [(f["before"], f["after"]) for f in job["fields"]] == [
        ("SELECT 1 FROM ranges", "SELECT 2 FROM ranges")
    ]
    assert all(j["action"] == "keep" for j in plan_jobs(shared, again))
    unknown = shared.user.post("/v1/plans", json={"text": text, "from_version": str(uuid4())})
    assert unknown.status_code == 404
    missing = f"/v1/dags/{dag.name}/versions/{uuid4()}"
    assert shared.user.get(missing).status_code == 404


# --- lineage --------------------------------------------------------------------------------------


def test_lineage_has_its_links_now_and_as_of_a_version(shared: Bench) -> None:
    dag = shared.dag(column="1")
    path = f"/v1/datasets/{dag.published}/lineage"
    now = get(shared, path)
    names = {d["dataset_uuid"]: d["job"] for d in (*now["up"], *now["down"])}
    names[now["dataset_uuid"]] = "work"
    links = {(names[link["from_uuid"]], names[link["to_uuid"]]) for link in now["links"]}
    assert links == {("request", "split"), ("split", "work"), ("work", "after")}
    then = get(shared, path, dataset_version=now["dataset_version"])
    assert {d["job"] for d in then["up"]} == {"request", "split"}
    assert {d["job"] for d in then["down"]} == {"after"}
    assert shared.user.get(path, params={"dataset_version": str(uuid4())}).status_code == 404


def test_lineage_of_an_old_version_keeps_a_removed_reader(shared: Bench) -> None:
    dag = shared.dag()
    before = get(shared, f"/v1/datasets/{dag.published}/lineage")
    text = get(shared, f"/v1/dags/{dag.name}")["text"]
    without = text[: text.index("  - name: after")] + text[text.index("publish:") :]
    reply = shared.user.post("/v1/dags", json={"text": without})
    assert reply.status_code == 200, reply.text
    path = f"/v1/datasets/{dag.published}/lineage"
    assert get(shared, path)["down"] == []
    then = get(shared, path, dataset_version=before["dataset_version"])
    assert [d["job"] for d in then["down"]] == ["after"]


# --- one task -------------------------------------------------------------------------------------


def test_a_task_shows_the_definition_that_it_runs_after_a_deploy(shared: Bench) -> None:
    dag = shared.dag(column="1")
    (task,) = shared.tasks(1, dag=dag)
    attempt = shared.claimed(task)
    before = get(shared, f"/v1/tasks/{task}")
    assert before["definition"]["is_current"]
    shared.dag(name=dag.name, column="2")
    shared.live.run(shared.live.service.swapper.swap_once)
    after = get(shared, f"/v1/tasks/{task}")
    definition = after["definition"]
    assert definition["config"]["sql"] == "SELECT 1 FROM ranges" and not definition["is_current"]
    assert definition["dag_version"] == before["definition"]["dag_version"]
    assert get(shared, f"/v1/jobs/{dag.name}/work")["config"]["sql"] == "SELECT 2 FROM ranges"
    (source,) = definition["inputs"]
    assert (source["name"], source["job"], source["output"]) == ("ranges", "split", "ranges")
    assert (after["start"], after["end"], after["parameters"]) == (0, 9, None)
    text = shared.user.get(f"/v1/tasks/{task}").text
    assert attempt.token not in text and attempt.fence["lease_token"] not in text


def test_a_task_shows_its_payload_and_the_names_of_its_secrets_only(shared: Bench) -> None:
    name = f"p_{uuid4().hex[:12]}"
    text = f"""
name: {name}
jobs:
  - name: request
    activation: source
    source: {{kind: manual}}
    outputs: [ranges]
  - name: work
    operator: sql
    execution_strategy: WholeDataset
    inputs: [{{from: {{job: request}}}}]
    outputs: [out]
    config: {{sql: "SELECT 1 FROM ranges"}}
"""
    reply = shared.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 200, reply.text
    body = {"dag": name, "job": "request", "payload": {"city": "Wien"}}
    assert shared.user.post("/v1/triggers", json=body).status_code == 200
    shared.live.drain()
    (item,) = get(shared, "/v1/tasks", dag=name, job="work")["items"]
    task = get(shared, f"/v1/tasks/{item['task_id']}")
    assert task["parameters"]["payload"] == {"city": "Wien"}
    assert task["definition"]["secrets"] == []
    shared.rows(
        "UPDATE job_revisions SET secrets = %s WHERE revision_id = %s",
        ["key"],
        task["definition"]["revision_id"],
    )
    assert get(shared, f"/v1/tasks/{item['task_id']}")["definition"]["secrets"] == ["key"]
