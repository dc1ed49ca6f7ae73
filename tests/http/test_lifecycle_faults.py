"""Fault injection: the connection breaks before or after every statement and every commit."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import pytest
from psycopg import InterfaceError, OperationalError
from psycopg_pool import PoolTimeout

from support.faults import FaultPlan, breakable
from support.lifecycle.lifecycle import bench
from support.lifecycle.lifecycle_model import DAG, Answer, Key, Report
from support.lifecycle.lifecycle_ops import (
    Cancel,
    Claim,
    ClaimMany,
    Complete,
    Emit,
    Fetch,
    Heartbeat,
    HeldAttempt,
    LoopPass,
    MoveIntoPast,
    Publish,
    Reap,
    Retry,
    Step,
    Trigger,
)
from support.lifecycle.lifecycle_run import ModelRun
from support.lifecycle.lifecycle_view import differences
from support.services.dispatcher import Secrets
from support.services.postgres import Templates, copied, sql
from support.services.replicas import ReplicaPair, replica_pair

WORK: Key = ("work", "p:0-9")
CAPPED: Key = ("capped", "p:0-9")
MOST_POINTS = 60
CLAIMED = 2  # the points before and after the statement of a claim
DONE = Report("Completed", scopes=("p:0-9", "c:1"))


@pytest.fixture(scope="module")
def breaking(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[ReplicaPair, FaultPlan]]:
    objects = tmp_path_factory.mktemp("objects")
    with (
        breakable() as plan,
        copied(templates) as dsns,
        replica_pair(secrets, dsns, objects, DAG) as pair,
    ):
        yield pair, plan


@pytest.fixture(autouse=True)
def _clean_replicas(breaking: tuple[ReplicaPair, FaultPlan]) -> None:
    breaking[0].clean()


@dataclass
class FaultCase:
    """The preparing steps, and the step during which the connection breaks."""

    name: str
    before: list[Step | Callable[[ModelRun], Step]]
    step: Callable[[ModelRun], Step]

    def set(self, run: ModelRun) -> Step:
        for step in (Trigger("p:0-9"), Publish(), Publish(), *self.before):
            run.run_steps(step if isinstance(step, Step) else step(run))
        return self.step(run)


def held(run: ModelRun, n: int = 0) -> HeldAttempt:
    return run.held[-1 - n]


def completed(report: Report) -> Callable[[ModelRun], Step]:
    return lambda run: Complete(held(run), report)


RUNNING: list[Step | Callable[[ModelRun], Step]] = [Claim(WORK)]
EXPIRED = [ClaimMany(2), MoveIntoPast(WORK, "expired"), MoveIntoPast(CAPPED, "overdue")]
WAITING = [*EXPIRED, Reap(), MoveIntoPast(WORK, "retry"), MoveIntoPast(CAPPED, "retry")]
FAULT_CASES = [
    FaultCase("claim", [], lambda _: Claim(WORK)),
    FaultCase("claim_of_a_capped_job", [], lambda _: Claim(CAPPED)),
    FaultCase("claim_that_loses", RUNNING, lambda _: Claim(WORK)),
    FaultCase("claim_many", [], lambda _: ClaimMany(3)),
    FaultCase("fetch", RUNNING, lambda _: Fetch(WORK)),
    FaultCase("heartbeat", RUNNING, lambda run: Heartbeat(held(run))),
    FaultCase("stale_heartbeat", RUNNING, lambda run: Heartbeat(held(run).forged())),
    FaultCase("complete", RUNNING, completed(DONE)),
    FaultCase("failure", RUNNING, completed(Report("Failed", message="boom"))),
    FaultCase("failure_of_a_capped_job", [Claim(CAPPED)], completed(Report("Failed"))),
    FaultCase(
        "publication", RUNNING, completed(Report("Completed", scopes=("c:1",), publishes=True))
    ),
    FaultCase(
        "late_publication",
        [Claim(WORK), MoveIntoPast(WORK, "expired"), Reap()],
        completed(Report("Completed", publishes=True)),
    ),
    FaultCase("stale_completion", RUNNING, lambda run: Complete(held(run).forged(), DONE)),
    FaultCase("events", RUNNING, lambda run: Emit(held(run), ("c:1", "c:2"))),
    FaultCase("trigger", [], lambda _: Trigger("p:10-19")),
    FaultCase("cancel", RUNNING, lambda _: Cancel(WORK)),
    FaultCase("reap", EXPIRED, lambda _: Reap()),
    FaultCase("retry", WAITING, lambda _: Retry()),
]
BY_NAME = [pytest.param(case, id=case.name) for case in FAULT_CASES]


def once(run: ModelRun, step: Step) -> Answer | None:
    """Try a step. Returns None if the caller only learns that the connection broke."""
    context = run.context(0)
    try:
        answer = step.run(context)
    except (OperationalError, InterfaceError, PoolTimeout):
        assert isinstance(step, LoopPass | Publish), "callers get an answer, if only a 503"
        return None
    run.held += context.claimed_attempts
    return None if answer[:1] == (503,) else answer


def retry_until_answered(run: ModelRun, step: Step) -> Answer:
    """Repeat a step until it is answered, like every caller does."""
    _wait_for_rollbacks(run)
    for _ in range(20):
        answer = once(run, step)
        if answer is not None:
            return answer
    raise AssertionError(f"{step} is never answered")


def _wait_for_rollbacks(run: ModelRun) -> None:
    """Wait until broken sessions have released their locks, because loops skip locked rows."""
    busy = """
        SELECT FROM pg_stat_activity WHERE datname = current_database()
           AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
    """
    deadline = time.monotonic() + 20
    while sql(run.pair.dsns.state, busy):
        assert time.monotonic() < deadline, "a session never let go"


def settle(run: ModelRun, step: Step, answer: Answer) -> None:
    """Check that the rows look as if the step ran once, regardless of the counts it returned."""
    view = run.pair.view()
    actual = view.model()
    mismatches: list[str] = []
    for expected, after in step.outcomes(run.model, answer, alone=True):
        mismatches = differences(after, actual)
        if not mismatches and (isinstance(step, LoopPass) or expected[:1] == answer[:1]):
            run.model, run.ids = after, view.ids
            return
    raise AssertionError(f"{step} answered {answer}:\n" + "\n".join(mismatches))


@pytest.mark.parametrize("case", BY_NAME)
def test_a_broken_connection_at_any_point_neither_duplicates_nor_loses_work(
    case: FaultCase, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    pair, plan = breaking
    for point in range(MOST_POINTS):
        run = ModelRun(pair)
        step = case.set(run)
        with plan.breaking(at=point):
            answer = once(run, step)
        broken_point = plan.injected
        if answer is None:
            answer = retry_until_answered(run, step)
        try:
            settle(run, step, answer)
            run.finish()
        except AssertionError as error:
            raise AssertionError(f"broken at {broken_point}: {error}") from error
        finally:
            pair.clean()
        if not broken_point:
            assert point >= 2, "no fault was injected"
            return
    raise AssertionError("the step has more points than MOST_POINTS")


@pytest.mark.parametrize("case", BY_NAME)
def test_while_postgres_is_unreachable_calls_fail_and_nothing_changes(
    case: FaultCase, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    pair, plan = breaking
    run = ModelRun(pair)
    step = case.set(run)
    with plan.breaking(every="before"):
        assert once(run, step) is None
        assert plan.injected
    assert not differences(run.model, pair.view().model())
    settle(run, step, retry_until_answered(run, step))
    run.finish()


REPEATABLE_CASES = [
    case for case in BY_NAME if case.id not in ("claim", "claim_of_a_capped_job", "claim_many")
]


@pytest.mark.parametrize("case", REPEATABLE_CASES)
def test_a_repeated_call_finds_the_result_whose_answer_was_lost(
    case: FaultCase, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    pair, plan = breaking
    run = ModelRun(pair)
    step = case.set(run)
    with plan.breaking(every="after"):
        assert once(run, step) is None
        assert plan.injected
    settle(run, step, retry_until_answered(run, step))
    run.finish()


def test_a_claim_whose_answer_is_lost_is_recovered_when_its_lease_expires(
    breaking: tuple[ReplicaPair, FaultPlan],
) -> None:
    """No worker knows the granted lease, so the task is not available until the lease expires."""
    pair, plan = breaking
    run = ModelRun(pair)
    FaultCase("", [], lambda _: Claim(WORK)).set(run)
    with plan.breaking(every="after"):
        assert once(run, Claim(WORK)) is None
    assert once(run, Claim(WORK)) == ("NotClaimed", "AlreadyRunning")
    run.model.claim(WORK, pair.view().model().tasks[WORK].lease or "")
    for step in (
        MoveIntoPast(WORK, "expired"),
        Reap(),
        MoveIntoPast(WORK, "retry"),
        Retry(),
        Claim(WORK),
    ):
        run.run_steps(step)
    assert held(run).fence.attempt == 2
    run.finish()


def test_a_committed_claim_is_answered_even_if_reading_its_payload_breaks(
    breaking: tuple[ReplicaPair, FaultPlan],
) -> None:
    pair, plan = breaking
    reads: list[str] = []
    with bench(pair.replicas[0].live) as own:
        for _ in range(MOST_POINTS):
            (task_id,) = own.tasks()  # of a new job, which the Dispatcher has not cached
            with plan.breaking(at=CLAIMED + len(reads)):
                reply = own.claim(task_id)
            answer, row = reply.json(), own.row(task_id)
            assert answer["status"] == "Claimed", f"broken at {plan.injected}: {reply.text}"
            assert answer["task"]["job"]["name"] == "work"
            assert (answer["attempt"], answer["lease_token"]) == (1, str(row["lease_token"]))
            if not plan.injected:
                break
            reads += plan.injected
    assert {read.split()[1] for read in reads} == {"SELECT"}, "the claim itself was broken"
    assert {read.split()[0] for read in reads} == {"before", "after"}


# --- the outbox -----------------------------------------------------------------------------------


ROUTING = [Trigger("p:10-19"), Claim(WORK), lambda run: Complete(held(run), DONE)]
WAKING = [
    *ROUTING,
    Publish(),
    Claim(("work", "p:10-19")),
]
OUTBOXES = [
    FaultCase("routing", ROUTING, lambda _: Publish()),
    FaultCase("waking", WAKING, lambda _: Publish()),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in OUTBOXES])
def test_outbox_rows_are_published_at_least_once_wherever_the_connection_breaks(
    case: FaultCase, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    pair, plan = breaking
    for point in range(MOST_POINTS):
        run = ModelRun(pair)
        case.set(run)
        with plan.breaking(at=point):
            once(run, Publish())
        broken_point = plan.injected
        drain(run)
        while run.model.outbox:
            run.model.publish()
        actual = pair.view().model()
        assert actual.messages >= run.model.messages, (
            f"a message was lost, broken at {broken_point}"
        )
        assert actual.messages.keys() == run.model.messages.keys()
        run.model.messages = actual.messages  # at least once: some messages may be sent twice
        assert not differences(run.model, actual), f"broken at {broken_point}"
        run.finish()
        if not broken_point:
            assert actual.messages.total() == run.model.messages.total()
            return
    raise AssertionError("the step has more points than MOST_POINTS")


def drain(run: ModelRun) -> None:
    """Make every outbox row due, and publish until none is left."""
    for _ in range(20):
        run.pair.state.execute("UPDATE outbox SET next_try_at = now()")
        if once(run, Publish()) == (0,):
            return
    raise AssertionError("the outbox is never empty")


INLINE = """
name: inline
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [parts]
    config: {size: 10}
  - name: leaf
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [done]
    config: {sql: "SELECT 1 FROM parts"}
"""


def test_an_inline_task_runs_once_wherever_the_connection_breaks(
    breaking: tuple[ReplicaPair, FaultPlan],
) -> None:
    pair, plan = breaking
    user = pair.replicas[0].user
    assert user.post("/v1/dags", json={"text": INLINE}).status_code == 200
    for point in range(MOST_POINTS):
        run = ModelRun(pair)
        body = {"dag": "inline", "job": "request", "start": 0, "end": 29}
        assert user.post("/v1/triggers", json=body).status_code == 200
        once(run, Publish())
        with plan.breaking(at=point):
            once(run, Publish())
        broken_point = plan.injected
        drain(run)
        actual = pair.view().model()
        tasks = {key: (task.status, task.attempt) for key, task in actual.tasks.items()}
        assert tasks == {
            ("request", "p:0-29"): ("Completed", 1),
            ("split", "p:0-29"): ("Completed", 1),
            **{("leaf", f"p:{n}-{n + 9}"): ("Queued", 1) for n in (0, 10, 20)},
        }, f"broken at {broken_point}"
        assert len(actual.events) == 4
        run.finish()
        if not broken_point:
            assert point > 4
            return
    raise AssertionError("the step has more points than MOST_POINTS")
