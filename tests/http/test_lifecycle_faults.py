"""Fault points: the connection breaks before and after every statement and every commit."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import pytest
from psycopg import InterfaceError, OperationalError
from psycopg_pool import PoolTimeout

from support.dispatcher import Secrets
from support.faults import FaultPlan, breakable
from support.lifecycle import bench
from support.lifecycle_model import DAG, Answer, Key, Report
from support.lifecycle_ops import (
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
    PublishBatch,
    Reap,
    Retry,
    Step,
    Trigger,
)
from support.lifecycle_run import ModelRun
from support.lifecycle_view import differences
from support.postgres import Templates, copied, sql
from support.replicas import ReplicaPair, replica_pair

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
        replica_pair(secrets, dsns, objects, DAG) as made,
    ):
        yield made, plan


@pytest.fixture(autouse=True)
def _an_empty_stage(breaking: tuple[ReplicaPair, FaultPlan]) -> None:
    breaking[0].clean()


@dataclass
class Scene:
    """What must have happened before, and the step that is to be struck."""

    name: str
    before: list[Step | Callable[[ModelRun], Step]]
    step: Callable[[ModelRun], Step]

    def set(self, play: ModelRun) -> Step:
        for step in (Trigger("p:0-9"), Publish(), Publish(), *self.before):
            play.run_steps(step if isinstance(step, Step) else step(play))
        return self.step(play)


def held(play: ModelRun, n: int = 0) -> HeldAttempt:
    return play.held[-1 - n]


def completed(report: Report) -> Callable[[ModelRun], Step]:
    return lambda play: Complete(held(play), report)


RUNNING: list[Step | Callable[[ModelRun], Step]] = [Claim(WORK)]
EXPIRED = [ClaimMany(2), MoveIntoPast(WORK, "expired"), MoveIntoPast(CAPPED, "overdue")]
WAITING = [*EXPIRED, Reap(), MoveIntoPast(WORK, "retry"), MoveIntoPast(CAPPED, "retry")]
SCENES = [
    Scene("claim", [], lambda _: Claim(WORK)),
    Scene("claim_of_a_capped_job", [], lambda _: Claim(CAPPED)),
    Scene("claim_that_loses", RUNNING, lambda _: Claim(WORK)),
    Scene("claim_many", [], lambda _: ClaimMany(3)),
    Scene("fetch", RUNNING, lambda _: Fetch(WORK)),
    Scene("heartbeat", RUNNING, lambda play: Heartbeat(held(play))),
    Scene("stale_heartbeat", RUNNING, lambda play: Heartbeat(held(play).forged())),
    Scene("complete", RUNNING, completed(DONE)),
    Scene("failure", RUNNING, completed(Report("Failed", message="boom"))),
    Scene("failure_of_a_capped_job", [Claim(CAPPED)], completed(Report("Failed"))),
    Scene("publication", RUNNING, completed(Report("Completed", scopes=("c:1",), publishes=True))),
    Scene(
        "late_publication",
        [Claim(WORK), MoveIntoPast(WORK, "expired"), Reap()],
        completed(Report("Completed", publishes=True)),
    ),
    Scene("stale_completion", RUNNING, lambda play: Complete(held(play).forged(), DONE)),
    Scene("events", RUNNING, lambda play: Emit(held(play), ("c:1", "c:2"))),
    Scene("batch", RUNNING, lambda play: PublishBatch(held(play), "s3://buffers/1")),
    Scene("trigger", [], lambda _: Trigger("p:10-19")),
    Scene("cancel", RUNNING, lambda _: Cancel(WORK)),
    Scene("reap", EXPIRED, lambda _: Reap()),
    Scene("retry", WAITING, lambda _: Retry()),
]
BY_NAME = [pytest.param(scene, id=scene.name) for scene in SCENES]


def once(play: ModelRun, step: Step) -> Answer | None:
    """Try a step; None when its caller learns only that something broke, and must try again."""
    hand = play.context(0)
    try:
        answer = step.run(hand)
    except (OperationalError, InterfaceError, PoolTimeout):
        assert isinstance(step, LoopPass | Publish), "callers get an answer, if only a 503"
        return None
    play.held += hand.won
    return None if answer[:1] == (503,) else answer


def until_heard(play: ModelRun, step: Step) -> Answer:
    """Try again until there is an answer, as every caller does."""
    _wait_for_rollbacks(play)
    for _ in range(20):
        answer = once(play, step)
        if answer is not None:
            return answer
    raise AssertionError(f"{step} is never answered")


def _wait_for_rollbacks(play: ModelRun) -> None:
    """A loop skips rows that a session is still letting go of; it would come by again."""
    busy = """
        SELECT FROM pg_stat_activity WHERE datname = current_database()
           AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
    """
    deadline = time.monotonic() + 20
    while sql(play.stage.dsns.state, busy):
        assert time.monotonic() < deadline, "a session never let go"


def settle(play: ModelRun, step: Step, answer: Answer) -> None:
    """The rows must be as if the step had happened once, whatever the counts it told."""
    view = play.stage.view()
    seen = view.model()
    doubts: list[str] = []
    for expected, after in step.outcomes(play.model, answer, alone=True):
        doubts = differences(after, seen)
        if not doubts and (isinstance(step, LoopPass) or expected[:1] == answer[:1]):
            play.model, play.ids = after, view.ids
            return
    raise AssertionError(f"{step} answered {answer}:\n" + "\n".join(doubts))


@pytest.mark.parametrize("scene", BY_NAME)
def test_a_broken_connection_at_any_point_neither_doubles_nor_loses(
    scene: Scene, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    made, plan = breaking
    for point in range(MOST_POINTS):
        play = ModelRun(made)
        step = scene.set(play)
        with plan.breaking(at=point):
            answer = once(play, step)
        struck = plan.injected
        if answer is None:
            answer = until_heard(play, step)
        try:
            settle(play, step, answer)
            play.finish()
        except AssertionError as error:
            raise AssertionError(f"struck {struck}: {error}") from error
        finally:
            made.clean()
        if not struck:
            assert point >= 2, "nothing was struck"
            return
    raise AssertionError("there is no end to the points")


@pytest.mark.parametrize("scene", BY_NAME)
def test_while_nothing_reaches_postgres_callers_hear_so_and_nothing_changes(
    scene: Scene, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    made, plan = breaking
    play = ModelRun(made)
    step = scene.set(play)
    with plan.breaking(every="before"):
        assert once(play, step) is None
        assert plan.injected
    assert not differences(play.model, made.view().model())
    settle(play, step, until_heard(play, step))
    play.finish()


LASTING = [
    scene for scene in BY_NAME if scene.id not in ("claim", "claim_of_a_capped_job", "claim_many")
]


@pytest.mark.parametrize("scene", LASTING)
def test_while_every_answer_of_postgres_is_lost_a_repeat_finds_what_was_done(
    scene: Scene, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    made, plan = breaking
    play = ModelRun(made)
    step = scene.set(play)
    with plan.breaking(every="after"):
        assert once(play, step) is None
        assert plan.injected
    settle(play, step, until_heard(play, step))
    play.finish()


def test_a_claim_whose_every_answer_is_lost_is_healed_by_its_lease(
    breaking: tuple[ReplicaPair, FaultPlan],
) -> None:
    """Nobody knows the lease that was granted: nobody else gets the task until it has run out."""
    made, plan = breaking
    play = ModelRun(made)
    Scene("", [], lambda _: Claim(WORK)).set(play)
    with plan.breaking(every="after"):
        assert once(play, Claim(WORK)) is None
    assert once(play, Claim(WORK)) == ("NotClaimed", "AlreadyRunning")
    play.model.claim(WORK, made.view().model().tasks[WORK].lease or "")
    for step in (
        MoveIntoPast(WORK, "expired"),
        Reap(),
        MoveIntoPast(WORK, "retry"),
        Retry(),
        Claim(WORK),
    ):
        play.run_steps(step)
    assert held(play).fence.attempt == 2
    play.finish()


def test_a_committed_claim_is_answered_wherever_the_read_for_its_payload_breaks(
    breaking: tuple[ReplicaPair, FaultPlan],
) -> None:
    made, plan = breaking
    reads: list[str] = []
    with bench(made.replicas[0].live) as own:
        for _ in range(MOST_POINTS):
            (task_id,) = own.tasks()  # of a job of its own, which the Dispatcher must read about
            with plan.breaking(at=CLAIMED + len(reads)):
                reply = own.claim(task_id)
            told, row = reply.json(), own.row(task_id)
            assert told["status"] == "Claimed", f"struck {plan.injected}: {reply.text}"
            assert told["task"]["job"]["name"] == "work"
            assert (told["attempt"], told["lease_token"]) == (1, str(row["lease_token"]))
            if not plan.injected:
                break
            reads += plan.injected
    assert {read.split()[1] for read in reads} == {"SELECT"}, "the claim itself was struck"
    assert {read.split()[0] for read in reads} == {"before", "after"}


# --- the outbox -----------------------------------------------------------------------------------


ROUTING = [Trigger("p:10-19"), Claim(WORK), lambda play: Complete(held(play), DONE)]
WAKING = [
    *ROUTING,
    Publish(),
    Claim(("work", "p:10-19")),
    lambda play: PublishBatch(held(play), "s3://buffers/1"),
    lambda play: PublishBatch(held(play), "s3://buffers/2"),
]
OUTBOXES = [
    Scene("routing", ROUTING, lambda _: Publish()),
    Scene("waking", WAKING, lambda _: Publish()),
]


@pytest.mark.parametrize("scene", [pytest.param(scene, id=scene.name) for scene in OUTBOXES])
def test_what_the_outbox_holds_is_performed_at_least_once_wherever_it_breaks(
    scene: Scene, breaking: tuple[ReplicaPair, FaultPlan]
) -> None:
    made, plan = breaking
    for point in range(MOST_POINTS):
        play = ModelRun(made)
        scene.set(play)
        with plan.breaking(at=point):
            once(play, Publish())
        struck = plan.injected
        drain(play)
        while play.model.outbox:
            play.model.publish()
        seen = made.view().model()
        assert seen.messages >= play.model.messages, f"a message was lost, struck {struck}"
        assert seen.messages.keys() == play.model.messages.keys()
        play.model.messages = seen.messages  # at least once: some may have gone out twice
        assert not differences(play.model, seen), f"struck {struck}"
        play.finish()
        if not struck:
            assert seen.messages.total() == play.model.messages.total()
            return
    raise AssertionError("there is no end to the points")


def drain(play: ModelRun) -> None:
    """Let every row fall due, and publish until there is none."""
    for _ in range(20):
        play.stage.state.execute("UPDATE outbox SET next_try_at = now()")
        if once(play, Publish()) == (0,):
            return
    raise AssertionError("the outbox is never empty")


INLINE = """
name: inline
jobs:
  - {name: ask, activation: source, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: ask}}]
    outputs: [parts]
    config: {size: 10}
  - name: leaf
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [done]
    config: {sql: "SELECT 1 FROM parts"}
"""


def test_a_task_that_runs_in_the_dispatcher_runs_once_wherever_it_breaks(
    breaking: tuple[ReplicaPair, FaultPlan],
) -> None:
    made, plan = breaking
    user = made.replicas[0].user
    assert user.post("/v1/dags", json={"text": INLINE}).status_code == 200
    for point in range(MOST_POINTS):
        play = ModelRun(made)
        body = {"dag": "inline", "job": "ask", "start": 0, "end": 29}
        assert user.post("/v1/triggers", json=body).status_code == 200
        once(play, Publish())
        with plan.breaking(at=point):
            once(play, Publish())
        struck = plan.injected
        drain(play)
        seen = made.view().model()
        tasks = {key: (task.status, task.attempt) for key, task in seen.tasks.items()}
        assert tasks == {
            ("ask", "p:0-29"): ("Completed", 1),
            ("split", "p:0-29"): ("Completed", 1),
            **{("leaf", f"p:{n}-{n + 9}"): ("Queued", 1) for n in (0, 10, 20)},
        }, f"struck {struck}"
        assert len(seen.events) == 4
        play.finish()
        if not struck:
            assert point > 4
            return
    raise AssertionError("there is no end to the points")
