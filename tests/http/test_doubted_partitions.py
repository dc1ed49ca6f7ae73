"""A checker finds its input to be wrong: whoever made it makes it again, once."""

from collections.abc import Generator
from typing import Any

import pytest

from support.cascade import CascadeDag
from support.lifecycle import Attempt, Bench

_DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: base
    operator: cryo_ingest
    inputs: [{{from: {{job: request}}}}]
    outputs: [blocks]
  - name: check
    operator: integrity_check
    inputs: [{{from: {{job: base}}}}]
    outputs: [findings]
    config: {{table: blocks}}
  - name: left
    operator: sql
    inputs: [{{from: {{job: base}}}}]
    outputs: [left]
    config: {{sql: "SELECT 1"}}
publish:
  - {{name: {name}_base, from: {{job: base}}}}
"""


@pytest.fixture
def world(shared: Bench) -> Generator[CascadeDag]:
    made = CascadeDag(shared)
    text = _DAG.format(name=made.name)
    assert shared.user.post("/v1/dags", json={"text": text}).status_code == 200
    for first in (0, 10):
        made.trigger(first, first + 9)
    made.publish()
    for attempt in claim_all(made, "base"):
        finish(made, attempt)
    yield made
    made.close()


def queued(world: CascadeDag, job: str) -> list[dict[str, Any]]:
    return world.bench.rows(
        """
        SELECT t.* FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s AND t.status = 'Queued' ORDER BY t.range_start
        """,
        world.name,
        job,
    )


def claim_all(world: CascadeDag, job: str) -> list[Attempt]:
    return [world.bench.claimed(str(task["task_id"])) for task in queued(world, job)]


def finish(world: CascadeDag, attempt: Attempt, **fields: Any) -> None:
    published = world.bench.write_output(attempt)
    reply = world.bench.complete(
        attempt, datasets_published=[published], events=[attempt.event()], **fields
    )
    assert reply.status_code == 200, reply.text
    world.publish()


def doubt(attempt: Attempt, part: str, **fields: Any) -> dict[str, Any]:
    given = attempt.claimed["task"]["inputs"][0]
    return {
        "dataset_uuid": given["dataset_uuid"],
        "dataset_version": given["dataset_version"],
        "kind": "partition",
        "partition_key": part,
        "reason": "block 3 differs from the chain",
        "key": part,
        **fields,
    }


def told(world: CascadeDag) -> list[dict[str, Any]]:
    """What was said of the base, by anybody but the Dispatcher, oldest first."""
    reply = world.bench.user.get("/v1/invalidations", params={"dataset": f"{world.name}_base"})
    items = [i for i in reply.json()["items"] if i["reason"] != "rewritten"]
    return list(reversed(items))


def doubted_once(world: CascadeDag) -> Attempt:
    """The first check finds the first partition wrong; the task that makes it again."""
    first, second = claim_all(world, "check")
    finish(world, second)
    finish(world, first, invalidations=[doubt(first, "0-9")])
    for attempt in claim_all(world, "left"):
        finish(world, attempt)
    (again,) = claim_all(world, "base")
    return again


def test_the_producer_makes_it_again_and_its_readers_follow(world: CascadeDag) -> None:
    again = doubted_once(world)
    assert again.scope["partition_key"] == "0-9"
    assert again.claimed["task"]["invalidation"]["reason"].startswith("block 3 is not as")
    # Nobody reads it again as it is.
    assert queued(world, "check") == queued(world, "left") == []
    (one,) = told(world)
    assert one["reason"] == "block 3 differs from the chain; being rebuilt"
    assert (one["tasks"], one["processed"]) == (1, 0)
    finish(world, again)
    assert [t["partition_key"] for t in queued(world, "check")] == ["0-9"]
    assert [t["partition_key"] for t in queued(world, "left")] == ["0-9"]
    assert told(world)[0]["processed"] == 1


def test_what_is_still_wrong_after_that_is_left_with_the_reason(world: CascadeDag) -> None:
    again = doubted_once(world)
    finish(world, again)
    (check,) = claim_all(world, "check")
    finish(world, check, invalidations=[doubt(check, "0-9")])
    assert queued(world, "base") == queued(world, "check") == []
    reason = told(world)[-1]["reason"]
    assert f"not rebuilt: task {again.task_id} already rebuilt it" in reason
    assert told(world)[-1]["tasks"] == 0


def test_a_person_has_it_made_again_and_then_it_may_be_doubted_again(world: CascadeDag) -> None:
    finish(world, doubted_once(world))
    (check,) = claim_all(world, "check")
    finish(world, check, invalidations=[doubt(check, "0-9")])
    path = f"/v1/datasets/{world.name}_base/invalidations"
    body = {"partition_key": "0-9", "rebuild": True}
    assert world.bench.user.post(path, json=body).json()["rebuilding"] == 1
    (rebuilt,) = claim_all(world, "base")
    finish(world, rebuilt)
    (check,) = claim_all(world, "check")
    finish(world, check, invalidations=[doubt(check, "0-9")])
    assert [t["partition_key"] for t in queued(world, "base")] == ["0-9"]


def test_two_who_doubt_the_same_have_it_made_again_once(world: CascadeDag) -> None:
    first, second = claim_all(world, "check")
    whole = doubt(first, "0-9", kind="row_range", partition_key=None, start=2, end=4)
    for _ in range(2):  # the answer was lost
        reply = world.bench.call("/v1/task/events", first, events=[], invalidations=[whole])
        assert reply.status_code == 200, reply.text
    finish(world, first, invalidations=[doubt(first, "0-9", key="whole")])
    finish(world, second)
    assert [t["partition_key"] for t in queued(world, "base")] == ["0-9"]
    assert len(told(world)) == 2


def test_one_that_cannot_be_made_again_says_so(world: CascadeDag) -> None:
    again = doubted_once(world)
    world.bench.rows("UPDATE tasks SET max_attempts = 1 WHERE task_id = %s", again.task_id)
    world.bench.complete(again, "Failed", error_message="no node", retryable=False)
    world.invalidate("base", partition_key="0-9")  # somebody has it checked once more
    world.publish()
    (check,) = claim_all(world, "check")
    finish(world, check, invalidations=[doubt(check, "0-9")])
    assert queued(world, "base") == []
    assert told(world)[-1]["reason"].endswith(
        f"not rebuilt: task {again.task_id} failed to rebuild it"
    )


def test_only_a_checker_may_doubt_and_only_what_it_was_asked_to_check(world: CascadeDag) -> None:
    left = claim_all(world, "left")[0]
    first, _ = claim_all(world, "check")
    for attempt, key in ((left, "0-9"), (first, "10-19")):
        items = [doubt(attempt, key)]
        for path, fields in (
            ("/v1/task/events", {"events": []}),
            ("/v1/task/complete", {"status": "Completed"}),
        ):
            reply = world.bench.call(path, attempt, invalidations=items, **fields)
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
        assert world.bench.status(attempt.task_id) == "Running"
    assert told(world) == [] and queued(world, "base") == []
