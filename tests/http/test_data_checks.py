"""Results of data checks: recorded with the commit, they block, warn or hold consumers."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.cli import connected_cli
from support.lifecycle.lifecycle import Attempt, Bench

DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: split, operator: range_splitter, inputs: [{{from: {{job: request}}}}], outputs: [ranges],
      config: {{size: 10}}}}
  - name: work
    operator: sql
    inputs: [{{from: {{job: split}}}}]
    outputs: [out]
    config: {{sql: "SELECT 1 AS n FROM ranges"}}
    checks:
      - {{rows: {{min: 1}}}}
      - {{name: positive, condition: "{condition}", on_failure: warn}}
      - {{unique: [n], on_failure: block_consumers, consumers: [careful, capped, whole]}}
{readers}
publish:
  - {{name: {name}_out, from: {{job: work}}}}
"""
READER = """
  - name: {name}
    operator: sql
    runtime: ecs_platform
    inputs: [{{from: {{job: work}}}}]
    outputs: [done]
    config: {{sql: "SELECT 1 AS n FROM out"}}
    {options}"""
READERS = {
    "careful": "",
    "careless": "",
    "capped": "scaling: {max_concurrency: 1}",
    "whole": "execution_strategy: WholeDataset",
}
SAMPLE = {"n": "1"}


def dag_text(name: str, condition: str = "n > 0") -> str:
    readers = "".join(READER.format(name=n, options=options) for n, options in READERS.items())
    return DAG.format(name=name, condition=condition, readers=readers)


def deploy(bench: Bench) -> str:
    name = f"c_{uuid4().hex[:12]}"
    reply = bench.user.post("/v1/dags", json={"text": dag_text(name)})
    assert reply.status_code == 200, reply.text
    return name


def result(attempt: Attempt, name: str, *, passed: bool = True, **fields: Any) -> dict[str, Any]:
    failure = {"samples": [SAMPLE], "message": f"check {name} of out failed: 2 rows"}
    return {
        "dataset_version": attempt.output["dataset_version"],
        "partition_key": attempt.scope["partition_key"],
        "name": name,
        "passed": passed,
        "checked_rows": 3,
        "failing_rows": 0 if passed else 2,
        **({} if passed else failure),
        **fields,
    }


def results(attempt: Attempt, *failed: str) -> list[dict[str, Any]]:
    names = ("rows", "positive", "unique_n")
    return [result(attempt, name, passed=name not in failed) for name in names]


def start(bench: Bench, dag: str, blocks: int = 10) -> list[Attempt]:
    """Claim the tasks of `work` for the first blocks."""
    body = {"dag": dag, "job": "request", "start": 0, "end": blocks - 1}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200
    bench.live.drain()
    return [bench.claimed(task) for task in queued(bench, dag, "work").values()]


def queued(bench: Bench, dag: str, job: str) -> dict[str, str]:
    """Return the queued tasks of a job by partition key."""
    query = {"dag": dag, "job": job, "status": "Queued"}
    items = bench.user.get("/v1/tasks", params=query).json()["items"]
    found = {item["partition_key"]: item["task_id"] for item in items}
    return dict(sorted(found.items(), key=lambda item: item[0].zfill(9)))


def publish(bench: Bench, attempt: Attempt, checks: list[dict[str, Any]]) -> Any:
    reply = bench.complete(
        attempt,
        datasets_published=[bench.write_output(attempt)],
        events=[attempt.event()],
        checks=checks,
    )
    bench.live.drain()
    return reply


def listed(bench: Bench, dag: str, **query: Any) -> list[tuple[Any, ...]]:
    name = query.pop("dataset", f"{dag}_out")
    reply = bench.user.get("/v1/checks", params={"dataset": name, **query})
    assert reply.status_code == 200, reply.text
    items = reply.json()["items"]
    return sorted((i["partition_key"], i["check"], i["state"], i["failing_rows"]) for i in items)


def reason(bench: Bench, task_id: str) -> str:
    return str(bench.user.get(f"/v1/tasks/{task_id}").json()["reason"])


def claim_status(bench: Bench, task_id: str) -> str:
    body = bench.claim(task_id).json()
    return body.get("reason") or body["status"]


def test_a_blocked_attempt_commits_nothing_and_its_result_is_kept_until_the_partition_is_committed(
    shared: Bench,
) -> None:
    dag = deploy(shared)
    [attempt] = start(shared, dag)
    assert [(c["name"], c["kind"]) for c in attempt.claimed["task"]["checks"]] == [
        ("rows", "rows"),
        ("positive", "condition"),
        ("unique_n", "unique"),
    ]
    shared.write_output(attempt)
    failure = {"error_code": "check_failed", "error_message": "no rows", "retryable": False}
    reply = shared.complete(attempt, "Failed", checks=results(attempt, "rows"), **failure)
    assert reply.json()["task_status"] == "Failed", reply.text
    shared.live.drain()
    assert queued(shared, dag, "careful") == {}
    assert shared.user.get(f"/v1/datasets/{dag}_out").json()["partitions"] == 0
    assert listed(shared, dag, failed=True) == [("0-9", "rows", "blocked", 2)]
    assert listed(shared, dag, dataset=f"{dag}.work.out", failed=True) == [
        ("0-9", "rows", "blocked", 2)
    ]
    nothing = {"dataset": f"{dag}_out", "partition_key": "0-9"}
    refused = shared.user.post("/v1/checks/accept", json=nothing)
    assert refused.status_code == 404
    assert "is not committed: fix the job and retry" in refused.json()["detail"]

    assert (
        shared.user.post("/v1/tasks/retry", json={"task_ids": [attempt.task_id]}).status_code == 200
    )
    shared.start_retries()
    second = shared.claimed(attempt.task_id)
    assert publish(shared, second, results(second)).status_code == 200
    assert [state for _, _, state, _ in listed(shared, dag)] == ["passed"] * 3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: r[:2], "has no result of the check 'unique_n' for partition 0-9"),
        (lambda r: [], "has no result of the check 'rows'"),
        (lambda r: [*r, {**r[0], "name": "other"}], "the job has no check 'other'"),
        (lambda r: [*r, r[0]], "two results of one check"),
        (lambda r: [{**r[0], "dataset_version": str(uuid4())}, *r[1:]], "has no check 'rows'"),
        (lambda r: [{**r[0], "passed": False}, *r[1:]], "rows blocks the commit"),
        (lambda r: [{**r[0], "failing_rows": -1}, *r[1:]], "failing_rows"),
        (lambda r: [{**r[0], "samples": [SAMPLE] * 6}, *r[1:]], "samples"),
        (lambda r: [{**r[0], "samples": [{"n": "x" * 101}]}, *r[1:]], "samples"),
        (lambda r: [{**r[0], "kind": "rows"}, *r[1:]], "kind"),
    ],
)
def test_results_that_do_not_match_the_definition_refuse_the_commit(
    shared: Bench, change: Any, problem: str
) -> None:
    dag = deploy(shared)
    [attempt] = start(shared, dag)
    refused = publish(shared, attempt, change(results(attempt)))
    assert refused.status_code == 422, refused.text
    assert problem in refused.text
    assert shared.status(attempt.task_id) == "Running"
    assert shared.user.get(f"/v1/datasets/{dag}_out").json()["partitions"] == 0


def test_a_warning_commits_and_can_be_accepted(shared: Bench, tmp_path: Path) -> None:
    dag = deploy(shared)
    [attempt] = start(shared, dag)
    assert publish(shared, attempt, results(attempt, "positive")).status_code == 200
    [task] = queued(shared, dag, "careful").values()
    assert claim_status(shared, task) == "Claimed"
    assert listed(shared, dag, failed=True) == [("0-9", "positive", "warned", 2)]

    run = connected_cli(shared, tmp_path)
    table = run("checks", f"{dag}_out", "--failed")
    assert "positive" in table
    assert "warned" in table
    assert run("accept", f"{dag}_out", "0-9", "--reason", "known") == (
        "Accepted: positive. 0 jobs no longer held.\n"
    )
    [item] = shared.user.get("/v1/checks", params={"failed": True, "limit": 1}).json()["items"]
    assert (item["state"], item["accept_reason"], item["samples"]) == (
        "accepted",
        "known",
        [SAMPLE],
    )
    assert '"state": "accepted"' in run("checks", f"{dag}_out", "--json")
    missing = shared.user.get("/v1/checks", params={"dataset": "nowhere"})
    assert missing.status_code == 404


def test_named_consumers_wait_for_a_failed_partition_until_it_is_accepted_or_replaced(
    shared: Bench,
) -> None:
    dag = deploy(shared)
    bad, good = start(shared, dag, 20)
    publish(shared, bad, results(bad, "unique_n"))
    publish(shared, good, results(good))
    assert listed(shared, dag, failed=True) == [("0-9", "unique_n", "holding", 2)]

    careful, capped = queued(shared, dag, "careful"), queued(shared, dag, "capped")
    [whole] = queued(shared, dag, "whole").values()
    for held in (careful["0-9"], capped["0-9"], whole):
        assert claim_status(shared, held) == "NotReady"
        assert reason(shared, held).endswith(
            f": check unique_n of {dag}_out failed for partition 0-9; replace the partition, or accept "
            "it (trace accept)"
        )
    # Other consumers, and other partitions of the same consumers, go on. The held task of the capped
    # job is the oldest, and does not take the room under its cap.
    claimed = {task["task"]["task_id"] for task in shared.claim_many("ecs_platform", 100)}
    careless = shared.rows(
        "SELECT task_id::text FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)"
        " WHERE g.name = %s AND j.name = 'careless'",
        dag,
    )
    assert claimed >= {careful["10-19"], capped["10-19"], *(row["task_id"] for row in careless)}
    assert claimed.isdisjoint({careful["0-9"], capped["0-9"], whole})

    accepted = shared.user.post(
        "/v1/checks/accept", json={"dataset": f"{dag}_out", "partition_key": "0-9"}
    ).json()
    assert (accepted["checks"], accepted["released_jobs"]) == (["unique_n"], 3)
    shared.live.drain()
    woken = {message["task_id"] for message in shared.messages("ecs_python")}
    assert {careful["0-9"], whole} <= woken, "the held tasks were not woken"
    assert claim_status(shared, careful["0-9"]) == "Claimed"
    assert claim_status(shared, whole) == "Claimed"

    # The replaced partition fails again, so its consumers wait again; then it passes.
    for failed in (["unique_n"], []):
        body = {"partition_key": "0-9", "rebuild": True}
        assert (
            shared.user.post(f"/v1/datasets/{dag}_out/invalidations", json=body).status_code == 200
        )
        shared.live.drain()
        attempt = shared.claimed(queued(shared, dag, "work")["0-9"])
        assert publish(shared, attempt, results(attempt, *failed)).status_code == 200
        if failed:
            held = queued(shared, dag, "careful")["0-9"]
            assert claim_status(shared, held) == "NotReady"
    assert claim_status(shared, held) == "Claimed"
    assert listed(shared, dag, failed=True) == []


def test_a_changed_check_keeps_the_generation_and_the_plan_says_so(
    shared: Bench, tmp_path: Path
) -> None:
    dag = deploy(shared)
    before = shared.user.get(f"/v1/datasets/{dag}_out").json()["dataset_version"]
    changed = tmp_path / "dag.yaml"
    changed.write_text(dag_text(dag, "n > 1"))
    reply = shared.user.post("/v1/plans", json={"text": changed.read_text()})
    assert reply.status_code == 200, reply.text
    plan = reply.json()["plan"]
    [work] = [job for job in plan["jobs"] if job["name"] == "work"]
    assert (work["action"], [f["field"] for f in work["fields"]]) == (
        "adopt",
        ["checks[1].rule.sql"],
    )
    assert not plan["builds"]
    printed = connected_cli(shared, tmp_path)("plan", str(changed), "--no-check")
    assert "work: checks changed; its data is kept" in printed
    assert "checks[1].rule.sql: n > 0 → n > 1" in printed
    reply = shared.user.post("/v1/dags", json={"text": changed.read_text()})
    assert reply.status_code == 200, reply.text
    assert shared.user.get(f"/v1/datasets/{dag}_out").json()["dataset_version"] == before
