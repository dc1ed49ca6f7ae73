"""Every list of the user API: pages, filters, and isolation between orgs."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.lifecycle.lifecycle import Bench, Dag
from support.users import new_org, new_user

LISTS = {
    "/v1/dags": "dag",
    "/v1/jobs": "job",
    "/v1/tasks": "task_id",
    "/v1/datasets": "dataset_uuid",
    "/v1/triggers": "event_id",
    "/v1/events": "event_id",
    "/v1/outbox": "outbox_id",
}


@dataclass(frozen=True)
class Org:
    """An org with a DAG, tasks, events and a waiting outbox row."""

    user: httpx.Client
    dag: Dag


@pytest.fixture(scope="module")
def orgs(own_bench: Bench) -> Generator[list[Org]]:
    with new_user(own_bench, "admin", org_id=new_org(own_bench)) as other:
        filled = [_fill(own_bench, user) for user in (own_bench.user, other)]
        for org in filled:
            for start in (100, 200, 300):
                _trigger(org, start)
        yield filled


def _fill(own_bench: Bench, user: httpx.Client) -> Org:
    theirs = Bench(own_bench.live, own_bench.http, user)
    dag = theirs.dag()
    theirs.tasks(3, dag=dag)
    return Org(user, dag)


def _trigger(org: Org, start: int) -> None:
    body = {"dag": org.dag.name, "job": "request", "start": start, "end": start + 9}
    assert org.user.post("/v1/triggers", json=body).status_code == 200


def pages(user: httpx.Client, path: str, limit: int, **filters: Any) -> list[list[dict[str, Any]]]:
    result: list[list[dict[str, Any]]] = []
    after: dict[str, str] = {}
    while True:
        reply = user.get(path, params={"limit": limit, **filters, **after})
        assert reply.status_code == 200, reply.text
        result.append(reply.json()["items"])
        if reply.json()["next"] is None:
            return result
        after = {"after": reply.json()["next"]}


def listed(user: httpx.Client, path: str, **filters: Any) -> list[dict[str, Any]]:
    return [item for page in pages(user, path, 1000, **filters) for item in page]


@pytest.mark.parametrize("path", LISTS)
def test_small_pages_contain_the_same_items_as_a_large_page_in_the_same_order(
    orgs: list[Org], path: str
) -> None:
    user = orgs[1].user
    all_items = listed(user, path)
    small = pages(user, path, 1)
    assert [len(page) for page in small] == [1] * len(all_items)
    assert [item for page in small for item in page] == all_items
    assert len(all_items) >= (1 if path == "/v1/dags" else 3)


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "99999999999999999999"])
def test_a_limit_out_of_bounds_is_refused(shared: Bench, path: str, limit: str) -> None:
    reply = shared.user.get(path, params={"limit": limit})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "limit")


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("after", ["x", "bnVsbA", "W10", "Wzk5OTk5OTk5OTk5OTk5OTk5OTk5OV0", "é"])
def test_an_invalid_position_is_refused(shared: Bench, path: str, after: str) -> None:
    reply = shared.user.get(path, params={"after": after})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "after"), reply.text


@pytest.mark.parametrize("path", LISTS)
def test_a_list_shows_nothing_of_another_org(orgs: list[Org], path: str) -> None:
    key = LISTS[path]
    theirs = {str(item[key]) + str(item.get("dag")) for item in listed(orgs[1].user, path)}
    ours = {str(item[key]) + str(item.get("dag")) for item in listed(orgs[0].user, path)}
    assert theirs and ours and not theirs & ours


@pytest.mark.parametrize("path", [path for path in LISTS if path not in ("/v1/dags", "/v1/outbox")])
def test_a_filter_by_the_dag_of_another_org_finds_nothing(orgs: list[Org], path: str) -> None:
    assert listed(orgs[0].user, path, dag=orgs[0].dag.name)
    assert listed(orgs[1].user, path, dag=orgs[0].dag.name) == []


def test_nothing_of_another_org_is_found_by_its_id_or_name(
    orgs: list[Org], own_bench: Bench
) -> None:
    mine, other = orgs
    dag = mine.dag.name
    task = listed(mine.user, "/v1/tasks", dag=dag)[0]["task_id"]
    event = listed(mine.user, "/v1/events", dag=dag)[0]["event_id"]
    paths = [
        f"/v1/dags/{dag}",
        f"/v1/jobs/{dag}/work",
        f"/v1/tasks/{task}",
        f"/v1/events/{event}",
        f"/v1/datasets/{mine.dag.published}",
    ]
    for path in paths:
        assert mine.user.get(path).status_code == 200, path
        hidden = other.user.get(path)
        assert (hidden.status_code, hidden.json()["code"]) == (404, "not_found"), path
    body = {"dag": dag, "job": "request", "start": 0, "end": 9}
    assert other.user.post("/v1/triggers", json=body).status_code == 404
    assert other.user.post(f"/v1/tasks/{task}/cancel").status_code == 404
    assert own_bench.row(task)["cancel_requested"] is False


def test_two_orgs_may_use_the_same_names(orgs: list[Org], own_bench: Bench) -> None:
    theirs = Bench(own_bench.live, own_bench.http, orgs[1].user)
    same_name = theirs.dag(name=orgs[0].dag.name)
    assert (
        same_name.datasets["work"]["dataset_uuid"] != orgs[0].dag.datasets["work"]["dataset_uuid"]
    )
    assert len([d for d in listed(orgs[1].user, "/v1/dags") if d["dag"] == same_name.name]) == 1


def test_the_summary_counts_the_callers_org_only(orgs: list[Org]) -> None:
    for org, other in (orgs, orgs[::-1]):
        summary = org.user.get("/v1/tasks/summary").json()
        assert org.dag.name in {job["dag"] for job in summary["jobs"]}
        assert all(
            job["dag"] != other.dag.name or not job["queued"] for job in summary["jobs"]
        ) or (org.dag.name == other.dag.name)
    assert orgs[1].user.get("/v1/tasks/summary").json()["pending_events"] == 3


@pytest.mark.parametrize(
    ("path", "filters", "field"),
    [
        ("/v1/tasks", {"status": "Queued"}, "status"),
        ("/v1/tasks", {"operator": "sql"}, "operator"),
        ("/v1/tasks", {"job": "split"}, "job"),
        ("/v1/jobs", {"operator": "sql"}, "operator"),
        ("/v1/jobs", {"activation": "source"}, "activation"),
        ("/v1/jobs", {"source_kind": "manual"}, "source_kind"),
        ("/v1/datasets", {"job": "work"}, "job"),
        ("/v1/events", {"job": "split"}, "job"),
        ("/v1/triggers", {"source_kind": "manual"}, "source_kind"),
        ("/v1/outbox", {"kind": "route_event"}, "kind"),
    ],
    ids=str,
)
def test_a_filter_returns_exactly_the_matching_items(
    orgs: list[Org], path: str, filters: dict[str, str], field: str
) -> None:
    user = orgs[1].user
    filtered = listed(user, path, **filters)
    (value,) = filters.values()
    assert filtered and filtered == [item for item in listed(user, path) if item[field] == value]


def test_a_boolean_filter_divides_a_list_into_two_parts(orgs: list[Org]) -> None:
    user = orgs[1].user
    for path, name in (("/v1/datasets", "published"), ("/v1/events", "routed")):
        yes, no = (listed(user, path, **{name: str(value)}) for value in (True, False))
        assert yes and no and len(yes) + len(no) == len(listed(user, path))
    assert listed(user, "/v1/jobs", paused="true") == []


def test_a_misspelt_filter_is_refused_instead_of_ignored(shared: Bench) -> None:
    reply = shared.user.get("/v1/tasks", params={"stats": "Failed"})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "stats"
    assert "status" in reply.json()["errors"][0]["message"]


def test_rows_added_while_paging_do_not_shift_the_pages(orgs: list[Org]) -> None:
    user, query = orgs[1].user, {"dag": orgs[1].dag.name, "limit": 2}
    before = [item["task_id"] for item in listed(user, "/v1/tasks", dag=orgs[1].dag.name)]
    page = user.get("/v1/tasks", params=query).json()
    _trigger(orgs[1], 500)  # a new row at the front of the list
    task_ids = [item["task_id"] for item in page["items"]]
    while page["next"]:
        page = user.get("/v1/tasks", params={**query, "after": page["next"]}).json()
        task_ids += [item["task_id"] for item in page["items"]]
    assert task_ids == before


def test_a_dag_and_a_job_show_their_definition(orgs: list[Org]) -> None:
    user, dag = orgs[0].user, orgs[0].dag
    shown_dag = user.get(f"/v1/dags/{dag.name}").json()
    assert f"name: {dag.name}" in shown_dag["text"]
    assert [job["job"] for job in shown_dag["job_list"]] == ["after", "request", "split", "work"]
    work = user.get(f"/v1/jobs/{dag.name}/work").json()
    assert (work["queued"], work["running"], work["operator"]) == (3, 0, "sql")
    assert [(i["job"], i["output"]) for i in work["inputs"]] == [("split", "ranges")]
    assert [o["published"] for o in work["outputs"]] == [dag.published]
    missing = user.get(f"/v1/jobs/{dag.name}/{uuid4().hex}")
    assert missing.status_code == 404
