"""What makes a stack unhealthy."""

from dataclasses import replace
from uuid import UUID

import pytest

from trace_etl.model.health import ChainFacts
from trace_etl.policy.health import HealthFacts, WorkerFacts, find_problems

TASK = UUID(int=7)
CHAIN = ChainFacts("d", "follow", TASK, "Running", False, 0, 0, 5)
WORKERS = WorkerFacts(connected={"spark:host:11"}, lost=set())
HEALTHY = HealthFacts(0, 0, 0, 0, {}, WORKERS, [CHAIN])


def kinds(facts: HealthFacts) -> list[str]:
    return [problem.kind for problem in find_problems(facts)]


def test_a_stack_without_problems_is_healthy():
    assert find_problems(HEALTHY) == []


@pytest.mark.parametrize(
    ("field", "kind", "message"),
    [
        ("failed", "failed_tasks", "2 tasks failed permanently"),
        ("outbox_failed", "failed_side_effects", "2 side effects failed"),
        ("batches_failed", "failed_batches", "2 batches dead-lettered"),
        ("paused", "paused_jobs", "2 jobs paused"),
    ],
)
def test_failures_and_pauses_are_counted(field: str, kind: str, message: str):
    (problem,) = find_problems(replace(HEALTHY, **{field: 2}))
    assert (problem.kind, problem.message, problem.count) == (kind, message, 2)


def test_a_runtime_with_waiting_tasks_needs_a_worker():
    (problem,) = find_problems(replace(HEALTHY, waiting_without_workers={"ecs_udf": 1}))
    assert (problem.kind, problem.runtime) == ("runtime_without_workers", "ecs_udf")
    assert problem.message == "no worker is ready for runtime ecs_udf: 1 task waiting"


def test_a_lost_worker_is_a_problem_until_one_with_its_name_connects():
    lost = WorkerFacts({"spark:host:11"}, {"spark:host:9", "udf:host:10", "udf:host:8"})
    (problem,) = find_problems(replace(HEALTHY, workers=lost))
    assert problem.kind == "dead_worker"
    assert problem.message == "worker udf ended unexpectedly and was not replaced"
    back = WorkerFacts({*lost.connected, "udf:other:12"}, lost.lost)
    assert kinds(replace(HEALTHY, workers=back)) == []


def test_a_queue_that_does_not_answer_is_a_problem():
    assert kinds(replace(HEALTHY, workers=None)) == ["queue_unavailable"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status": "Failed"}, ["chain_stopped"]),
        ({"status": "Canceled", "is_paused": True}, []),
        ({"silent_seconds": 61}, ["chain_silent"]),
        ({"silent_seconds": None}, []),
        ({"lag_blocks": 900, "lag_seconds": 121}, ["chain_lagging"]),
        ({"lag_blocks": 900, "lag_seconds": 120}, []),
        ({"lag_blocks": 900, "lag_seconds": None}, []),
    ],
)
def test_a_followed_chain_must_run_report_and_keep_up(
    changes: dict[str, object], expected: list[str]
):
    assert kinds(replace(HEALTHY, chains=[replace(CHAIN, **changes)])) == expected
