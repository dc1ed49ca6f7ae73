"""A checker reports a defect in its input: the producer rebuilds the partition once."""

from collections.abc import Generator
from typing import Any

import pytest

from support.data.cascade import CascadeDag
from support.lifecycle.lifecycle import Attempt, Bench

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
def dag(shared: Bench) -> Generator[CascadeDag]:
    cascade = CascadeDag(shared)
    text = _DAG.format(name=cascade.name)
    assert shared.user.post("/v1/dags", json={"text": text}).status_code == 200
    for first in (0, 10):
        cascade.trigger(first, first + 9)
    cascade.publish()
    for attempt in claim_all(cascade, "base"):
        finish(cascade, attempt)
    yield cascade
    cascade.close()


def queued(dag: CascadeDag, job: str) -> list[dict[str, Any]]:
    return dag.bench.rows(
        """
        SELECT t.* FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
         WHERE g.name = %s AND j.name = %s AND t.status = 'Queued' ORDER BY t.range_start
        """,
        dag.name,
        job,
    )


def claim_all(dag: CascadeDag, job: str) -> list[Attempt]:
    return [dag.bench.claimed(str(task["task_id"])) for task in queued(dag, job)]


def finish(dag: CascadeDag, attempt: Attempt, **fields: Any) -> None:
    published = dag.bench.write_output(attempt)
    reply = dag.bench.complete(
        attempt, datasets_published=[published], events=[attempt.event()], **fields
    )
    assert reply.status_code == 200, reply.text
    dag.publish()


def defect(attempt: Attempt, partition: str, **fields: Any) -> dict[str, Any]:
    checked = attempt.claimed["task"]["inputs"][0]
    return {
        "dataset_uuid": checked["dataset_uuid"],
        "dataset_version": checked["dataset_version"],
        "kind": "partition",
        "partition_key": partition,
        "reason": "block 3 differs from the chain",
        "key": partition,
        **fields,
    }


def reported_defects(dag: CascadeDag) -> list[dict[str, Any]]:
    """Return the invalidations of `base` except those caused by rewrites, oldest first."""
    reply = dag.bench.user.get("/v1/invalidations", params={"dataset": f"{dag.name}_base"})
    items = [i for i in reply.json()["items"] if i["reason"] != "rewritten"]
    return list(reversed(items))


def report_one_defect(dag: CascadeDag) -> Attempt:
    """Report a defect in the first partition. Returns the claimed rebuild task."""
    first, second = claim_all(dag, "check")
    finish(dag, second)
    finish(dag, first, invalidations=[defect(first, "0-9")])
    for attempt in claim_all(dag, "left"):
        finish(dag, attempt)
    (again,) = claim_all(dag, "base")
    return again


def test_the_producer_rebuilds_a_defective_partition_and_its_readers_follow(
    dag: CascadeDag,
) -> None:
    again = report_one_defect(dag)
    assert again.scope["partition_key"] == "0-9"
    assert again.claimed["task"]["invalidation"]["reason"].startswith("block 3 differs")
    # No consumer reads the defective partition again before the rebuild.
    assert queued(dag, "check") == queued(dag, "left") == []
    (defect_row,) = reported_defects(dag)
    assert defect_row["reason"] == "block 3 differs from the chain; being rebuilt"
    assert (defect_row["tasks"], defect_row["processed"]) == (1, 0)
    finish(dag, again)
    assert [t["partition_key"] for t in queued(dag, "check")] == ["0-9"]
    assert [t["partition_key"] for t in queued(dag, "left")] == ["0-9"]
    assert reported_defects(dag)[0]["processed"] == 1


def test_a_partition_that_is_still_defective_is_not_rebuilt_again(dag: CascadeDag) -> None:
    again = report_one_defect(dag)
    finish(dag, again)
    (check,) = claim_all(dag, "check")
    finish(dag, check, invalidations=[defect(check, "0-9")])
    assert queued(dag, "base") == queued(dag, "check") == []
    reason = reported_defects(dag)[-1]["reason"]
    assert f"not rebuilt: task {again.task_id} already rebuilt it" in reason
    assert reported_defects(dag)[-1]["tasks"] == 0


def test_after_a_manual_rebuild_a_defect_can_be_reported_again(dag: CascadeDag) -> None:
    finish(dag, report_one_defect(dag))
    (check,) = claim_all(dag, "check")
    finish(dag, check, invalidations=[defect(check, "0-9")])
    path = f"/v1/datasets/{dag.name}_base/invalidations"
    body = {"partition_key": "0-9", "rebuild": True}
    assert dag.bench.user.post(path, json=body).json()["rebuilding"] == 1
    (rebuilt,) = claim_all(dag, "base")
    finish(dag, rebuilt)
    (check,) = claim_all(dag, "check")
    finish(dag, check, invalidations=[defect(check, "0-9")])
    assert [t["partition_key"] for t in queued(dag, "base")] == ["0-9"]


def test_two_defects_in_one_partition_cause_one_rebuild(dag: CascadeDag) -> None:
    first, second = claim_all(dag, "check")
    row_range = defect(first, "0-9", kind="row_range", partition_key=None, start=2, end=4)
    for _ in range(2):  # repeated, as after a lost answer
        reply = dag.bench.call("/v1/task/events", first, events=[], invalidations=[row_range])
        assert reply.status_code == 200, reply.text
    finish(dag, first, invalidations=[defect(first, "0-9", key="whole")])
    finish(dag, second)
    assert [t["partition_key"] for t in queued(dag, "base")] == ["0-9"]
    assert len(reported_defects(dag)) == 2


def test_a_defect_reports_that_the_rebuild_failed(dag: CascadeDag) -> None:
    again = report_one_defect(dag)
    dag.bench.rows("UPDATE tasks SET max_attempts = 1 WHERE task_id = %s", again.task_id)
    dag.bench.complete(again, "Failed", error_message="no node", retryable=False)
    dag.invalidate("base", partition_key="0-9")  # requests another check
    dag.publish()
    (check,) = claim_all(dag, "check")
    finish(dag, check, invalidations=[defect(check, "0-9")])
    assert queued(dag, "base") == []
    assert reported_defects(dag)[-1]["reason"].endswith(
        f"not rebuilt: task {again.task_id} failed to rebuild it"
    )


def test_only_a_checker_may_report_defects_and_only_in_its_own_scope(dag: CascadeDag) -> None:
    left = claim_all(dag, "left")[0]
    first, _ = claim_all(dag, "check")
    for attempt, key in ((left, "0-9"), (first, "10-19")):
        items = [defect(attempt, key)]
        for path, fields in (
            ("/v1/task/events", {"events": []}),
            ("/v1/task/complete", {"status": "Completed"}),
        ):
            reply = dag.bench.call(path, attempt, invalidations=items, **fields)
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
        assert dag.bench.status(attempt.task_id) == "Running"
    assert reported_defects(dag) == [] and queued(dag, "base") == []
