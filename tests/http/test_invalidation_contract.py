"""Rewrites, what they make invalid, who is told, and which of two outputs stays."""

from collections.abc import Generator
from typing import Any

import pytest

from support.cascade import CascadeDag
from support.lifecycle import Attempt, Bench, run_behind_lock, run_concurrently


@pytest.fixture
def world(shared: Bench) -> Generator[CascadeDag]:
    made = CascadeDag(shared).deploy()
    made.trigger(0, 19)
    made.publish()
    yield made
    made.close()


def tasks(world: CascadeDag, job: str, status: str = "Queued") -> list[dict[str, Any]]:
    return world.bench.rows(
        """
        SELECT t.* FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s AND t.status = %s ORDER BY t.range_start
        """,
        world.name,
        job,
        status,
    )


def claimed(world: CascadeDag, job: str, nth: int = 0) -> Attempt:
    return world.bench.claimed(str(tasks(world, job)[nth]["task_id"]))


def finished(world: CascadeDag, attempt: Attempt, **fields: Any) -> None:
    published = world.bench.write_output(attempt)
    reply = world.bench.complete(attempt, datasets_published=[published], **fields)
    assert reply.status_code == 200, reply.text


def shown_task(world: CascadeDag, job: str, key: str) -> str:
    (row,) = world.bench.rows(
        """
        SELECT p.task_id FROM partitions p JOIN datasets d USING (dataset_version)
          JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s AND p.partition_key = %s
        """,
        world.name,
        job,
        key,
    )
    return str(row["task_id"])


def invalidations(world: CascadeDag, **query: Any) -> list[dict[str, Any]]:
    reply = world.bench.user.get("/v1/invalidations", params={"limit": 1000, **query})
    assert reply.status_code == 200, reply.text
    return [i for i in reply.json()["items"] if i["dag"] == world.name]


def complete_all(world: CascadeDag) -> None:
    while world.waiting():
        world.finish_all()


# --- who is told ------------------------------------------------------------------------------


def test_what_is_published_first_invalidates_nothing(world: CascadeDag) -> None:
    complete_all(world)
    # A job with two inputs runs for each of them: its second word on a scope is a rewrite.
    assert {i["output"] for i in invalidations(world)} == {"both"}


def test_a_rewrite_reaches_every_consumer_and_goes_on_from_there(world: CascadeDag) -> None:
    complete_all(world)
    world.chain[3] += 1
    world.invalidate("ranges", partition_key="0-9", reason="a reorganisation")
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "base")] == ["0-9"]
    base = claimed(world, "base")
    assert base.claimed["task"]["invalidation"] | {"invalidation_id": 0, "dataset_uuid": 0} == {
        "invalidation_id": 0,
        "dataset_uuid": 0,
        "dataset_version": base.claimed["task"]["inputs"][0]["dataset_version"],
        "kind": "partition",
        "partition_key": "0-9",
        "start": 0,
        "end": 9,
        "filter": None,
        "reason": "a reorganisation",
    }
    finished(world, base)
    world.publish()
    assert [len(tasks(world, job)) for job in ("left", "right", "both")] == [1, 1, 0]
    rewritten = next(i for i in invalidations(world) if i["output"] == "base")
    assert (rewritten["kind"], rewritten["reason"]) == ("partition", "rewritten")
    assert rewritten["made_by"] == f"task:{base.task_id}"
    assert (rewritten["tasks"], rewritten["processed"]) == (2, 0)


def test_it_is_processed_by_a_consumer_once_its_completion_is_accepted(world: CascadeDag) -> None:
    complete_all(world)
    world.invalidate("base", partition_key="10-19")
    world.publish()
    left = claimed(world, "left")
    world.bench.complete(left, "Failed", error_message="not yet")
    (told,) = invalidations(world, dataset=f"{world.name}_base")
    assert (told["tasks"], told["processed"]) == (2, 0)
    finished(world, world.bench.next_attempt(left))
    (told,) = invalidations(world, dataset=f"{world.name}_base")
    assert (told["tasks"], told["processed"]) == (2, 1)


def test_a_row_range_makes_one_task_for_each_output_it_touches(world: CascadeDag) -> None:
    complete_all(world)
    world.invalidate("base", start=8, end=12, filter={"address": ["a", "b"], "n": 1})
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "left")] == ["0-9", "10-19"]
    told = claimed(world, "left").claimed["task"]["invalidation"]
    assert (told["kind"], told["start"], told["end"]) == ("row_range", 8, 12)
    assert told["filter"] == {"address": ["a", "b"], "n": 1}


def test_what_waits_is_not_asked_for_twice(world: CascadeDag) -> None:
    world.finish_all()  # base is there; left and right wait
    world.invalidate("base", partition_key="0-9")
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "left")] == ["0-9", "10-19"]


def test_rewrites_that_meet_behind_a_fork_are_answered_once(world: CascadeDag) -> None:
    complete_all(world)
    world.invalidate("base", partition_key="0-9")
    world.publish()
    left, right = claimed(world, "left"), claimed(world, "right")
    finished(world, left)
    finished(world, right)
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "both")] == ["0-9"]
    world.invalidate("left", partition_key="0-9")  # somebody's word is never swallowed
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "both")] == ["0-9", "0-9"]


def test_an_invalid_range_of_a_source_passes_through_a_splitter(world: CascadeDag) -> None:
    complete_all(world)
    # The source's own dataset has no name: its consumer is told through the database.
    world.bench.rows(
        """
        WITH made AS (
            INSERT INTO invalidations (org_id, dataset_uuid, dataset_version, kind, range_start,
                                       range_end, made_by)
            SELECT d.org_id, d.dataset_uuid, d.dataset_version, 'row_range', 12, 13, 'user:x'
              FROM datasets d JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
             WHERE g.name = %s AND j.name = 'request' RETURNING invalidation_id)
        INSERT INTO outbox (kind, subject) SELECT 'route_invalidation', invalidation_id FROM made
        """,
        world.name,
    )
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "base")] == ["10-19"]


def test_a_consumer_in_another_dag_is_told_too(world: CascadeDag) -> None:
    complete_all(world)
    text = f"""
name: {world.name}_more
jobs:
  - name: far
    operator: sql
    inputs: [{{from: {{dataset: {world.name}_left}}, where: {{a: [1]}}}}]
    outputs: [far]
    config: {{sql: "SELECT 1"}}
"""
    assert world.bench.user.post("/v1/dags", json={"text": text}).status_code == 200
    world.reconcile()
    more = CascadeDag(world.bench, name=f"{world.name}_more")
    far = claimed(more, "far")
    assert far.claimed["task"]["inputs"][0]["where"] == {"a": [1]}
    finished(more, far)
    world.invalidate("left", start=0, end=19)
    world.publish()
    told = [t for t in tasks(more, "far") if t["invalidation_id"]]
    assert [t["partition_key"] for t in told] == ["0-9"]  # the other one waits anyway
    more.close()


# --- which of two stays -----------------------------------------------------------------------


def test_a_late_answer_from_older_inputs_does_not_replace_a_newer_one(world: CascadeDag) -> None:
    world.finish_all()
    old = claimed(world, "left")
    world.invalidate("base", partition_key="0-9")
    world.publish()
    new = next(t for t in tasks(world, "left") if t["invalidation_id"])
    newer = world.bench.claimed(str(new["task_id"]))
    finished(world, newer)
    finished(world, old)  # accepted, and not shown
    assert shown_task(world, "left", "0-9") == newer.task_id
    assert world.bench.status(old.task_id) == "Completed"


def test_a_late_answer_is_shown_while_there_is_nothing_else(world: CascadeDag) -> None:
    world.finish_all()
    old = claimed(world, "left")
    world.invalidate("base", partition_key="0-9")
    world.publish()
    finished(world, old)
    assert shown_task(world, "left", "0-9") == old.task_id
    new = next(t for t in tasks(world, "left") if t["invalidation_id"])
    finished(world, world.bench.claimed(str(new["task_id"])))
    assert shown_task(world, "left", "0-9") == str(new["task_id"])


@pytest.mark.parametrize("older_first", [True, False])
def test_two_that_commit_at_the_same_moment_leave_the_newer_one(
    world: CascadeDag, older_first: bool
) -> None:
    world.finish_all()
    old = claimed(world, "left")
    world.invalidate("base", partition_key="0-9")
    world.publish()
    (new,) = [t for t in tasks(world, "left") if t["invalidation_id"]]
    newer = world.bench.claimed(str(new["task_id"]))
    pair = [old, newer] if older_first else [newer, old]
    run_concurrently([lambda a=a: finished(world, a) for a in pair])
    assert shown_task(world, "left", "0-9") == newer.task_id


def test_an_attempt_whose_claim_the_routing_could_not_see_asks_for_itself_again(
    world: CascadeDag,
) -> None:
    """The claim took its snapshot, then waited for a row; a rewrite was routed meanwhile."""
    complete_all(world)
    left = str(tasks(world, "left", "Completed")[0]["task_id"])
    world.bench.rows("DELETE FROM partitions WHERE task_id = %s", left)
    world.bench.rows(
        "UPDATE tasks SET status = 'Queued', lease_token = NULL, attempt = 2 WHERE task_id = %s",
        left,
    )
    claims: list[Attempt] = []

    def claim() -> None:
        claims.append(world.bench.claimed(left))

    lock = f"SELECT FROM tasks WHERE task_id = '{left}' FOR UPDATE"
    run_behind_lock(
        world.bench.live.dsns.state,
        lock,
        [claim],
        meanwhile=lambda: (world.invalidate("base", partition_key="0-9"), world.publish()),
    )
    assert not [t for t in tasks(world, "left") if t["invalidation_id"]]
    finished(world, claims[0])
    (again,) = tasks(world, "left")
    assert (again["dedupe_key"], again["partition_key"]) == (f"again:{left}", "0-9")


# --- what operators say -----------------------------------------------------------------------


def test_an_operator_invalidates_with_its_completion_and_while_it_runs(world: CascadeDag) -> None:
    complete_all(world)
    world.invalidate("ranges", partition_key="0-9")
    world.publish()
    base = claimed(world, "base")
    item = {"dataset_uuid": base.output["dataset_uuid"], "reason": "reorg"}
    rows = {**item, "kind": "row_range", "start": 12, "end": 14, "key": "head 0xab"}
    for _ in range(2):  # repeated: the same key is the same invalidation
        reply = world.bench.call("/v1/task/events", base, events=[], invalidations=[rows])
        assert (reply.status_code, reply.json()["accepted"]) == (200, 0), reply.text
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "left")] == ["10-19"]
    whole = {**item, "kind": "partition", "partition_key": "0-9"}
    assert world.bench.complete(base, invalidations=[whole]).status_code == 200
    world.publish()
    assert [t["partition_key"] for t in tasks(world, "left")] == ["0-9", "10-19"]


def test_the_same_call_again_invalidates_once_though_it_gives_no_key(world: CascadeDag) -> None:
    complete_all(world)
    world.invalidate("ranges", partition_key="0-9")
    world.publish()
    base = claimed(world, "base")
    item = {"dataset_uuid": base.output["dataset_uuid"], "kind": "row_range", "start": 2, "end": 4}

    def say(*items: dict[str, Any]) -> int:
        reply = world.bench.call("/v1/task/events", base, events=[], invalidations=list(items))
        assert reply.status_code == 200, reply.text
        query = "SELECT count(*) AS n FROM invalidations WHERE task_id = %s"
        return world.bench.rows(query, base.task_id)[0]["n"]

    assert say(item) == 1
    assert say(item) == 1
    assert say({**item, "reason": "another reorganisation"}) == 2
    assert say(item, item) == 4  # one call that says it twice means it
    assert say(item, item) == 4


def test_nobody_invalidates_what_is_not_their_output(world: CascadeDag) -> None:
    base = claimed(world, "base")
    foreign = base.claimed["task"]["inputs"][0]["dataset_uuid"]
    item = {"dataset_uuid": foreign, "kind": "row_range", "start": 0, "end": 1}
    for path, fields in (
        ("/v1/task/events", {"events": []}),
        ("/v1/task/complete", {"status": "Completed"}),
    ):
        reply = world.bench.call(path, base, invalidations=[item], **fields)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert world.bench.status(base.task_id) == "Running"
    assert invalidations(world) == []


def test_a_stale_lease_invalidates_nothing(world: CascadeDag) -> None:
    base = claimed(world, "base")
    item = {
        "dataset_uuid": base.output["dataset_uuid"],
        "kind": "row_range",
        "start": 0,
        "end": 1,
    }
    world.bench.complete(base, "Failed", error_message="x")
    reply = world.bench.call("/v1/task/events", base, events=[], invalidations=[item])
    assert (reply.status_code, reply.json()["code"]) == (409, "lease_lost")
    assert invalidations(world) == []


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
def test_a_scope_that_makes_no_sense_is_refused(world: CascadeDag, scope: dict[str, Any]) -> None:
    base = claimed(world, "base")
    item = {"dataset_uuid": base.output["dataset_uuid"], **scope}
    reply = world.bench.call("/v1/task/events", base, events=[], invalidations=[item])
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert reply.json()["errors"][0]["field"].startswith("invalidations.0")


# --- what people say --------------------------------------------------------------------------


def test_a_scope_that_was_never_published_is_not_found(world: CascadeDag) -> None:
    complete_all(world)
    assert world.invalidate("base", partition_key="500-509") == 404
    assert world.invalidate("base", start=500, end=509) == 404
    path = f"/v1/datasets/{world.name}_nothing/invalidations"
    assert world.bench.user.post(path, json={"partition_key": "0-9"}).status_code == 404


def test_a_rebuild_makes_the_scope_again_and_its_readers_follow(world: CascadeDag) -> None:
    complete_all(world)
    before = shown_task(world, "base", "0-9")
    path = f"/v1/datasets/{world.name}_base/invalidations"
    reply = world.bench.user.post(path, json={"start": 2, "end": 3, "rebuild": True}).json()
    assert (reply["rebuilding"], reply["invalidation_id"]) == (1, None)
    world.chain[2] += 7
    world.finish_all()
    assert shown_task(world, "base", "0-9") != before
    world.publish()
    complete_all(world)
    assert world.visible_rows("both") == world.expected_rows("both")


def test_the_list_is_paged_and_filtered(world: CascadeDag) -> None:
    complete_all(world)
    for _ in range(3):
        world.invalidate("base", partition_key="0-9")
        world.invalidate("left", partition_key="0-9")
    query = {"dataset": f"{world.name}_base", "limit": 2}
    first = world.bench.user.get("/v1/invalidations", params=query).json()
    rest = world.bench.user.get(
        "/v1/invalidations", params={**query, "after": first["next"]}
    ).json()
    found = [*first["items"], *rest["items"]]
    assert len({i["invalidation_id"] for i in found}) == 3
    assert {i["dataset"] for i in found} == {f"{world.name}_base"}
    assert rest["next"] is None
    assert {i["made_by"] for i in found} == {"user:local"}


# --- lineage ----------------------------------------------------------------------------------


def test_lineage_names_every_partition_and_attempt_up_and_down(world: CascadeDag) -> None:
    complete_all(world)
    path = f"/v1/datasets/{world.name}_left/lineage/0-9"
    found = world.bench.user.get(path).json()
    assert (found["task_id"], found["attempt"]) == (shown_task(world, "left", "0-9"), 1)
    above = [(i["depth"], i["output"], i["partition_key"], i["task_id"]) for i in found["up"]]
    assert above == [(1, "base", "0-9", shown_task(world, "base", "0-9"))]
    below = [(i["depth"], i["output"], i["partition_key"], i["is_current"]) for i in found["down"]]
    assert below == [(1, "both", "0-9", True)]
    top = world.bench.user.get(f"/v1/datasets/{world.name}_both/lineage/10-19").json()
    assert sorted((i["depth"], i["output"]) for i in top["up"]) == [
        (1, "left"),
        (1, "right"),
        (2, "base"),
        (2, "base"),
    ]


def test_lineage_takes_keys_with_slashes(world: CascadeDag) -> None:
    complete_all(world)
    rename = """UPDATE partitions SET partition_key = 'eu/west 1'
                 WHERE partition_key = '0-9' AND dataset_version = %s"""
    (left,) = world.bench.user.get("/v1/datasets", params={"name": f"{world.name}_left"}).json()[
        "items"
    ]
    world.bench.rows(rename, left["dataset_version"])
    for written in ("eu/west%201", "eu%2Fwest%201"):
        reply = world.bench.user.get(f"/v1/datasets/{world.name}_left/lineage/{written}")
        assert reply.status_code == 200, reply.text
        assert reply.json()["partition_key"] == "eu/west 1"


def test_lineage_tells_what_was_rewritten_since(world: CascadeDag) -> None:
    complete_all(world)
    before = shown_task(world, "base", "0-9")
    world.invalidate("ranges", partition_key="0-9")
    world.publish()
    finished(world, claimed(world, "base"))
    found = world.bench.user.get(f"/v1/datasets/{world.name}_left/lineage/0-9").json()
    assert [(i["task_id"], i["is_current"]) for i in found["up"]] == [(before, False)]


def test_lineage_of_a_dataset_is_its_place_in_the_dags(world: CascadeDag) -> None:
    found = world.bench.user.get(f"/v1/datasets/{world.name}_left/lineage").json()
    assert [(i["depth"], i["output"]) for i in found["up"]] == [
        (1, "base"),
        (2, "ranges"),
        (3, "asked"),
    ]
    assert [(i["depth"], i["output"]) for i in found["down"]] == [(1, "both")]
    path = f"/v1/datasets/{world.name}_left/lineage/7-8"
    assert world.bench.user.get(path).status_code == 404
