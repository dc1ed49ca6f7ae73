"""Invalidations: what rewrites invalidate, which consumers rebuild, and which of two outputs wins."""

from collections.abc import Generator
from typing import Any

import pytest

from support.data.cascade import CascadeDag
from support.lifecycle.lifecycle import Attempt, Bench, run_behind_lock, run_concurrently


@pytest.fixture
def dag(shared: Bench) -> Generator[CascadeDag]:
    cascade = CascadeDag(shared).deploy()
    cascade.trigger(0, 19)
    cascade.publish()
    yield cascade
    cascade.close()


def tasks(dag: CascadeDag, job: str, status: str = "Queued") -> list[dict[str, Any]]:
    return dag.bench.rows(
        """
        SELECT t.* FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s AND t.status = %s ORDER BY t.range_start
        """,
        dag.name,
        job,
        status,
    )


def claimed(dag: CascadeDag, job: str, nth: int = 0) -> Attempt:
    return dag.bench.claimed(str(tasks(dag, job)[nth]["task_id"]))


def finished(dag: CascadeDag, attempt: Attempt, **fields: Any) -> None:
    published = dag.bench.write_output(attempt)
    reply = dag.bench.complete(attempt, datasets_published=[published], **fields)
    assert reply.status_code == 200, reply.text


def committed_task(dag: CascadeDag, job: str, key: str) -> str:
    (row,) = dag.bench.rows(
        """
        SELECT p.task_id FROM partitions p JOIN datasets d USING (dataset_version)
          JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s AND p.partition_key = %s
        """,
        dag.name,
        job,
        key,
    )
    return str(row["task_id"])


def invalidations(dag: CascadeDag, **query: Any) -> list[dict[str, Any]]:
    reply = dag.bench.user.get("/v1/invalidations", params={"limit": 1000, **query})
    assert reply.status_code == 200, reply.text
    return [i for i in reply.json()["items"] if i["dag"] == dag.name]


def split_output(dag: CascadeDag) -> dict[str, Any]:
    """Return the dataset of the splitter, which the task of `base` does not read."""
    (row,) = dag.bench.rows(
        "SELECT d.dataset_uuid::text, d.dataset_version::text FROM datasets d"
        " JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)"
        " WHERE g.name = %s AND j.name = 'split'",
        dag.name,
    )
    return row


def complete_all(dag: CascadeDag) -> None:
    while dag.waiting():
        dag.finish_all()


# --- consumers of an invalidation ---------------------------------------------------------------------


def test_the_first_publication_invalidates_nothing(dag: CascadeDag) -> None:
    complete_all(dag)
    # A job with two inputs runs for each of them: its second output for a scope is a rewrite.
    assert {i["output"] for i in invalidations(dag)} == {"both"}


def test_a_rewrite_rebuilds_all_direct_and_indirect_consumers(dag: CascadeDag) -> None:
    complete_all(dag)
    dag.chain[3] += 1
    dag.invalidate("ranges", partition_key="0-9", reason="a reorganisation")
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "base")] == ["0-9"]
    base = claimed(dag, "base")
    splits = split_output(dag)
    assert base.claimed["task"]["invalidation"] | {"invalidation_id": 0, "dataset_uuid": 0} == {
        "invalidation_id": 0,
        "dataset_uuid": 0,
        "dataset_version": splits["dataset_version"],
        "kind": "partition",
        "partition_key": "0-9",
        "start": 0,
        "end": 9,
        "filter": None,
        "reason": "a reorganisation",
        "is_reorganisation": False,
    }
    finished(dag, base)
    dag.publish()
    assert [len(tasks(dag, job)) for job in ("left", "right", "both")] == [1, 1, 0]
    rewritten = next(i for i in invalidations(dag) if i["output"] == "base")
    assert (rewritten["kind"], rewritten["reason"]) == ("partition", "rewritten")
    assert rewritten["made_by"] == f"task:{base.task_id}"
    assert (rewritten["tasks"], rewritten["processed"]) == (2, 0)


def test_an_invalidation_is_processed_when_the_consumers_completion_is_accepted(
    dag: CascadeDag,
) -> None:
    complete_all(dag)
    dag.invalidate("base", partition_key="10-19")
    dag.publish()
    left = claimed(dag, "left")
    dag.bench.complete(left, "Failed", error_message="not yet")
    (invalidation,) = invalidations(dag, dataset=f"{dag.name}_base")
    assert (invalidation["tasks"], invalidation["processed"]) == (2, 0)
    finished(dag, dag.bench.next_attempt(left))
    (invalidation,) = invalidations(dag, dataset=f"{dag.name}_base")
    assert (invalidation["tasks"], invalidation["processed"]) == (2, 1)


def test_a_row_range_creates_one_task_per_affected_output(dag: CascadeDag) -> None:
    complete_all(dag)
    dag.invalidate("base", start=8, end=12, filter={"address": ["a", "b"], "n": 1})
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "left")] == ["0-9", "10-19"]
    invalidation = claimed(dag, "left").claimed["task"]["invalidation"]
    assert (invalidation["kind"], invalidation["start"], invalidation["end"]) == (
        "row_range",
        8,
        12,
    )
    assert invalidation["filter"] == {"address": ["a", "b"], "n": 1}


def test_an_invalidation_creates_no_task_where_one_is_queued(dag: CascadeDag) -> None:
    dag.finish_all()  # base is committed; left and right are queued
    dag.invalidate("base", partition_key="0-9")
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "left")] == ["0-9", "10-19"]


def test_rewrites_of_two_inputs_rebuild_a_common_consumer_once(dag: CascadeDag) -> None:
    complete_all(dag)
    dag.invalidate("base", partition_key="0-9")
    dag.publish()
    left, right = claimed(dag, "left"), claimed(dag, "right")
    finished(dag, left)
    finished(dag, right)
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "both")] == ["0-9"]
    dag.invalidate("left", partition_key="0-9")  # a manual invalidation is never dropped
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "both")] == ["0-9", "0-9"]


def test_an_invalid_range_of_a_source_is_forwarded_by_a_splitter(dag: CascadeDag) -> None:
    complete_all(dag)
    # The source's dataset has no published name: the test invalidates it through the database.
    dag.bench.rows(
        """
        WITH made AS (
            INSERT INTO invalidations (org_id, dataset_uuid, dataset_version, kind, range_start,
                                       range_end, made_by)
            SELECT d.org_id, d.dataset_uuid, d.dataset_version, 'row_range', 12, 13, 'user:x'
              FROM datasets d JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
             WHERE g.name = %s AND j.name = 'request' RETURNING invalidation_id)
        INSERT INTO outbox (kind, subject) SELECT 'route_invalidation', invalidation_id FROM made
        """,
        dag.name,
    )
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "base")] == ["10-19"]


def test_a_consumer_in_another_dag_is_rebuilt_too(dag: CascadeDag) -> None:
    complete_all(dag)
    text = f"""
name: {dag.name}_more
jobs:
  - name: far
    operator: sql
    inputs: [{{from: {{dataset: {dag.name}_left}}, where: {{a: [1]}}}}]
    outputs: [far]
    config: {{sql: "SELECT 1"}}
"""
    assert dag.bench.user.post("/v1/dags", json={"text": text}).status_code == 200
    dag.reconcile()
    more = CascadeDag(dag.bench, name=f"{dag.name}_more")
    far = claimed(more, "far")
    assert far.claimed["task"]["inputs"][0]["where"] == {"a": [1]}
    finished(more, far)
    dag.invalidate("left", start=0, end=19)
    dag.publish()
    invalidation = [t for t in tasks(more, "far") if t["invalidation_id"]]
    assert [t["partition_key"] for t in invalidation] == [
        "0-9"
    ]  # the other partition is queued anyway
    more.close()


# --- which of two outputs is kept -------------------------------------------------------------


def test_a_late_output_from_older_inputs_does_not_replace_a_newer_one(dag: CascadeDag) -> None:
    dag.finish_all()
    old = claimed(dag, "left")
    dag.invalidate("base", partition_key="0-9")
    dag.publish()
    new = next(t for t in tasks(dag, "left") if t["invalidation_id"])
    newer = dag.bench.claimed(str(new["task_id"]))
    finished(dag, newer)
    finished(dag, old)  # accepted, but not committed
    assert committed_task(dag, "left", "0-9") == newer.task_id
    assert dag.bench.status(old.task_id) == "Completed"


def test_a_late_output_is_committed_if_no_other_exists(dag: CascadeDag) -> None:
    dag.finish_all()
    old = claimed(dag, "left")
    dag.invalidate("base", partition_key="0-9")
    dag.publish()
    finished(dag, old)
    assert committed_task(dag, "left", "0-9") == old.task_id
    new = next(t for t in tasks(dag, "left") if t["invalidation_id"])
    finished(dag, dag.bench.claimed(str(new["task_id"])))
    assert committed_task(dag, "left", "0-9") == str(new["task_id"])


@pytest.mark.parametrize("older_first", [True, False])
def test_of_two_concurrent_commits_the_newer_one_wins(dag: CascadeDag, older_first: bool) -> None:
    dag.finish_all()
    old = claimed(dag, "left")
    dag.invalidate("base", partition_key="0-9")
    dag.publish()
    (new,) = [t for t in tasks(dag, "left") if t["invalidation_id"]]
    newer = dag.bench.claimed(str(new["task_id"]))
    pair = [old, newer] if older_first else [newer, old]
    run_concurrently([lambda a=a: finished(dag, a) for a in pair])
    assert committed_task(dag, "left", "0-9") == newer.task_id


def test_an_attempt_claimed_during_routing_is_rebuilt_after_a_rewrite(
    dag: CascadeDag,
) -> None:
    """The claim took its snapshot, then waited for a lock while a rewrite was routed."""
    complete_all(dag)
    left = str(tasks(dag, "left", "Completed")[0]["task_id"])
    dag.bench.rows("DELETE FROM partitions WHERE task_id = %s", left)
    dag.bench.rows(
        "UPDATE tasks SET status = 'Queued', lease_token = NULL, attempt = 2 WHERE task_id = %s",
        left,
    )
    claims: list[Attempt] = []

    def claim() -> None:
        claims.append(dag.bench.claimed(left))

    lock = f"SELECT FROM tasks WHERE task_id = '{left}' FOR UPDATE"
    run_behind_lock(
        dag.bench.live.dsns.state,
        lock,
        [claim],
        meanwhile=lambda: (dag.invalidate("base", partition_key="0-9"), dag.publish()),
    )
    assert not [t for t in tasks(dag, "left") if t["invalidation_id"]]
    finished(dag, claims[0])
    (again,) = tasks(dag, "left")
    assert (again["dedupe_key"], again["partition_key"]) == (f"again:{left}", "0-9")


# --- invalidations by operators ---------------------------------------------------------------


def test_an_operator_invalidates_with_its_completion_and_while_it_runs(dag: CascadeDag) -> None:
    complete_all(dag)
    dag.invalidate("ranges", partition_key="0-9")
    dag.publish()
    base = claimed(dag, "base")
    item = {"dataset_uuid": base.output["dataset_uuid"], "reason": "reorg"}
    rows = {**item, "kind": "row_range", "start": 12, "end": 14, "key": "head 0xab"}
    for _ in range(2):  # repeated with the same key: the same invalidation
        reply = dag.bench.call("/v1/task/events", base, events=[], invalidations=[rows])
        assert (reply.status_code, reply.json()["accepted"]) == (200, 0), reply.text
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "left")] == ["10-19"]
    partition = {**item, "kind": "partition", "partition_key": "0-9"}
    assert dag.bench.complete(base, invalidations=[partition]).status_code == 200
    dag.publish()
    assert [t["partition_key"] for t in tasks(dag, "left")] == ["0-9", "10-19"]


def test_a_repeated_call_without_a_key_invalidates_once(dag: CascadeDag) -> None:
    complete_all(dag)
    dag.invalidate("ranges", partition_key="0-9")
    dag.publish()
    base = claimed(dag, "base")
    item = {"dataset_uuid": base.output["dataset_uuid"], "kind": "row_range", "start": 2, "end": 4}

    def send(*items: dict[str, Any]) -> int:
        reply = dag.bench.call("/v1/task/events", base, events=[], invalidations=list(items))
        assert reply.status_code == 200, reply.text
        query = "SELECT count(*) AS n FROM invalidations WHERE task_id = %s"
        return dag.bench.rows(query, base.task_id)[0]["n"]

    assert send(item) == 1
    assert send(item) == 1
    assert send({**item, "reason": "another reorganisation"}) == 2
    assert send(item, item) == 4  # two equal items in one call are two invalidations
    assert send(item, item) == 4


def test_a_task_can_invalidate_only_its_own_outputs(dag: CascadeDag) -> None:
    base = claimed(dag, "base")
    foreign = split_output(dag)["dataset_uuid"]
    item = {"dataset_uuid": foreign, "kind": "row_range", "start": 0, "end": 1}
    for path, fields in (
        ("/v1/task/events", {"events": []}),
        ("/v1/task/complete", {"status": "Completed"}),
    ):
        reply = dag.bench.call(path, base, invalidations=[item], **fields)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert dag.bench.status(base.task_id) == "Running"
    assert invalidations(dag) == []


def test_a_stale_lease_invalidates_nothing(dag: CascadeDag) -> None:
    base = claimed(dag, "base")
    item = {
        "dataset_uuid": base.output["dataset_uuid"],
        "kind": "row_range",
        "start": 0,
        "end": 1,
    }
    dag.bench.complete(base, "Failed", error_message="x")
    reply = dag.bench.call("/v1/task/events", base, events=[], invalidations=[item])
    assert (reply.status_code, reply.json()["code"]) == (409, "lease_lost")
    assert invalidations(dag) == []


@pytest.mark.parametrize(
    "scope",
    [
        {"kind": "partition"},
        {"kind": "partition", "partition_key": "0-9", "filter": {"a": 1}},
        {"kind": "partition", "partition_key": "0-9", "start": 0, "end": 8},
        {"kind": "row_range", "start": 3},
        {"kind": "row_range", "start": 3, "end": 2},
        {"kind": "row_range", "partition_key": "0-9", "start": 0, "end": 9},
        {"kind": "row_range", "start": 0, "end": 9, "filter": {"a b": 1}},
        {"kind": "row_range", "start": 0, "end": 9, "filter": {"a": []}},
        {"kind": "row_range", "start": 0, "end": 9, "filter": {}},
        {"kind": "rows", "start": 0, "end": 9},
    ],
    ids=str,
)
def test_an_invalid_scope_is_refused(dag: CascadeDag, scope: dict[str, Any]) -> None:
    base = claimed(dag, "base")
    item = {"dataset_uuid": base.output["dataset_uuid"], **scope}
    reply = dag.bench.call("/v1/task/events", base, events=[], invalidations=[item])
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert reply.json()["errors"][0]["field"].startswith("invalidations.0")


# --- invalidations by users -------------------------------------------------------------------


def test_a_scope_that_was_never_published_is_not_found(dag: CascadeDag) -> None:
    complete_all(dag)
    assert dag.invalidate("base", partition_key="500-509") == 404
    assert dag.invalidate("base", start=500, end=509) == 404
    path = f"/v1/datasets/{dag.name}_nothing/invalidations"
    assert dag.bench.user.post(path, json={"partition_key": "0-9"}).status_code == 404


def test_a_rebuild_recreates_the_scope_and_its_readers_follow(dag: CascadeDag) -> None:
    complete_all(dag)
    before = committed_task(dag, "base", "0-9")
    path = f"/v1/datasets/{dag.name}_base/invalidations"
    reply = dag.bench.user.post(path, json={"start": 2, "end": 3, "rebuild": True}).json()
    assert (reply["rebuilding"], reply["invalidation_id"]) == (1, None)
    dag.chain[2] += 7
    dag.finish_all()
    assert committed_task(dag, "base", "0-9") != before
    dag.publish()
    complete_all(dag)
    assert dag.visible_rows("both") == dag.expected_rows("both")


def test_invalidations_are_paged_and_filtered(dag: CascadeDag) -> None:
    complete_all(dag)
    for _ in range(3):
        dag.invalidate("base", partition_key="0-9")
        dag.invalidate("left", partition_key="0-9")
    query = {"dataset": f"{dag.name}_base", "limit": 2}
    first = dag.bench.user.get("/v1/invalidations", params=query).json()
    rest = dag.bench.user.get("/v1/invalidations", params={**query, "after": first["next"]}).json()
    items = [*first["items"], *rest["items"]]
    assert len({i["invalidation_id"] for i in items}) == 3
    assert {i["dataset"] for i in items} == {f"{dag.name}_base"}
    assert rest["next"] is None
    assert {i["made_by"] for i in items} == {"user:local"}


# --- lineage ----------------------------------------------------------------------------------


def test_lineage_names_every_partition_and_attempt_up_and_down(dag: CascadeDag) -> None:
    complete_all(dag)
    path = f"/v1/datasets/{dag.name}_left/lineage/0-9"
    lineage = dag.bench.user.get(path).json()
    assert (lineage["task_id"], lineage["attempt"]) == (committed_task(dag, "left", "0-9"), 1)
    above = [(i["depth"], i["output"], i["partition_key"], i["task_id"]) for i in lineage["up"]]
    assert above == [(1, "base", "0-9", committed_task(dag, "base", "0-9"))]
    below = [
        (i["depth"], i["output"], i["partition_key"], i["is_current"]) for i in lineage["down"]
    ]
    assert below == [(1, "both", "0-9", True)]
    top = dag.bench.user.get(f"/v1/datasets/{dag.name}_both/lineage/10-19").json()
    assert sorted((i["depth"], i["output"]) for i in top["up"]) == [
        (1, "left"),
        (1, "right"),
        (2, "base"),
        (2, "base"),
    ]


def test_lineage_accepts_partition_keys_with_slashes(dag: CascadeDag) -> None:
    complete_all(dag)
    rename = """UPDATE partitions SET partition_key = 'eu/west 1'
                 WHERE partition_key = '0-9' AND dataset_version = %s"""
    (left,) = dag.bench.user.get("/v1/datasets", params={"name": f"{dag.name}_left"}).json()[
        "items"
    ]
    dag.bench.rows(rename, left["dataset_version"])
    for written in ("eu/west%201", "eu%2Fwest%201"):
        reply = dag.bench.user.get(f"/v1/datasets/{dag.name}_left/lineage/{written}")
        assert reply.status_code == 200, reply.text
        assert reply.json()["partition_key"] == "eu/west 1"


def test_lineage_shows_inputs_that_were_rewritten_since(dag: CascadeDag) -> None:
    complete_all(dag)
    before = committed_task(dag, "base", "0-9")
    dag.invalidate("ranges", partition_key="0-9")
    dag.publish()
    finished(dag, claimed(dag, "base"))
    lineage = dag.bench.user.get(f"/v1/datasets/{dag.name}_left/lineage/0-9").json()
    assert [(i["task_id"], i["is_current"]) for i in lineage["up"]] == [(before, False)]


def test_lineage_of_a_dataset_lists_its_producers_and_consumers(dag: CascadeDag) -> None:
    lineage = dag.bench.user.get(f"/v1/datasets/{dag.name}_left/lineage").json()
    assert [(i["depth"], i["output"]) for i in lineage["up"]] == [
        (1, "base"),
        (2, "ranges"),
        (3, "requested"),
    ]
    assert [(i["depth"], i["output"]) for i in lineage["down"]] == [(1, "both")]
    path = f"/v1/datasets/{dag.name}_left/lineage/7-8"
    assert dag.bench.user.get(path).status_code == 404


@pytest.mark.parametrize("value", ["a\x00b", ["x", "a\x00b"]])
def test_a_nul_in_a_filter_is_refused(shared: Bench, value: object) -> None:
    attempt = shared.attempt(dag=(dag := shared.dag()))
    scope = {"start": 0, "end": 9, "filter": {"severity": value}}
    output = {"kind": "row_range", "dataset_uuid": attempt.output["dataset_uuid"], **scope}
    replies = [
        shared.complete(attempt, invalidations=[output]),
        shared.events(attempt, invalidations=[output]),
        shared.user.post(f"/v1/datasets/{dag.published}/invalidations", json=scope),
    ]
    assert [reply.status_code for reply in replies] == [422] * 3, replies
    assert all("filter" in reply.json()["detail"] for reply in replies)
    assert shared.status(attempt.task_id) == "Running"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/dags", {"text": "name: a\x00"}),
        ("/v1/plans", {"text": "name: a\x00"}),
        ("/v1/triggers", {"dag": "a\x00", "job": "b", "start": 0, "end": 1}),
        ("/v1/pauses", {"dag": "a", "job": "b", "reason": "\x00"}),
        ("/v1/users", {"name": "a\x00", "role": "reader"}),
        ("/v1/backfills", {"dag": "a", "job": "\x00", "start": 0, "end": 1}),
    ],
)
def test_a_nul_in_any_text_of_a_request_is_refused(
    shared: Bench, path: str, body: dict[str, Any]
) -> None:
    reply = shared.user.post(path, json=body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
