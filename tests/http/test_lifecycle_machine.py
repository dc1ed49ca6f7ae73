"""A state machine drives two Dispatchers over HTTPS and Postgres, and a model says what must be."""

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.dispatcher import Secrets
from support.lifecycle_model import DAG, RANGES, SCOPES, Key, Report
from support.lifecycle_ops import (
    Cancel,
    Claim,
    ClaimMany,
    Complete,
    Emit,
    Fetch,
    Heartbeat,
    HeldAttempt,
    MoveIntoPast,
    Publish,
    PublishBatch,
    Reap,
    Retry,
    Step,
    Trigger,
)
from support.lifecycle_run import ModelRun
from support.postgres import Templates, copied
from support.replicas import ReplicaPair, replica_pair

# Races end as they will, so what Hypothesis draws must not depend on the state: it draws wishes
# ("complete the third newest attempt so"), and a step is made of each when its time comes.
Wish = Callable[[ModelRun], Step]

REPLICA = st.integers(0, 1)
ANY = st.integers(0, 7)
"""Which task, or which attempt: counted from the newest."""
LIVELY = st.sampled_from([True, True, True, False])
"""Whether an attempt that runs is wanted, if there is one."""
SOME = st.lists(st.sampled_from(SCOPES), min_size=1, max_size=3).map(tuple)
REPORT = st.one_of(
    st.builds(
        Report,
        status=st.just("Failed"),
        retryable=st.sampled_from([True, True, True, False]),
        message=st.sampled_from([None, "boom"]),
    ),
    st.builds(
        Report,
        status=st.just("Completed"),
        scopes=st.one_of(SOME, st.just(())),
        publishes=st.booleans(),
    ),
    st.builds(Report, status=st.just("Canceled")),
)
BATCH = st.sampled_from(["s3://buffers/1", "s3://buffers/2"])
MOMENT = st.sampled_from(["expired", "expired", "overdue", "retry"])
FORGED = st.sampled_from([False] * 9 + [True])


def wish(make: Callable[..., Step], **drawn: st.SearchStrategy) -> st.SearchStrategy[Wish]:
    """A step to be made when its time comes, from what is drawn now."""
    return st.fixed_dictionaries(drawn).map(lambda values: lambda play: make(play, **values))


# --- wishes -------------------------------------------------------------------------------------

CALLS: dict[str, Callable[..., Step]] = {
    "emit": lambda held, scopes, **_: Emit(held, scopes),
    "heartbeat": lambda held, **_: Heartbeat(held),
    "publish_batch": lambda held, batch, **_: PublishBatch(held, batch),
    "complete": lambda held, report, **_: Complete(held, report),
}
WHICH = {"n": ANY, "lively": LIVELY, "forged": FORGED}
WHAT = {"report": REPORT, "scopes": SOME, "batch": BATCH}


def of_an_attempt(
    play: ModelRun, call: str, n: int, lively: bool, forged: bool, **drawn: Any
) -> Step:
    held = play.attempt(n, lively)
    if held is None:
        return Claim(play.key(n))
    return CALLS[call](held.forged() if forged else held, **drawn)


def of_a_task(play: ModelRun, kind: Callable[[Key], Step], n: int) -> Step:
    return kind(play.key(n))


def reap(play: ModelRun) -> Step:
    """The reaper, if there is something to reap; or time passes, so that there is."""
    running = [k for k, t in play.model.tasks.items() if t.status == "Running"]
    return MoveIntoPast(running[-1], "expired") if running and not play.model.overdue() else Reap()


def retry(play: ModelRun) -> Step:
    waiting = [k for k, t in play.model.tasks.items() if t.retry]
    return MoveIntoPast(waiting[-1], "retry") if waiting and not play.model.due() else Retry()


def claim_many(play: ModelRun, places: int) -> Step:
    """As many as that; or another trigger, so that there is something to claim."""
    missing = [scope for scope in RANGES if ("request", scope) not in play.model.tasks]
    return ClaimMany(places) if play.model.claimable(1) or not missing else Trigger(missing[0])


CALL = wish(of_an_attempt, call=st.sampled_from(list(CALLS)), **WHICH, **WHAT)
COMPLETE = wish(of_an_attempt, call=st.just("complete"), **WHICH, report=REPORT)
KEYED = wish(of_a_task, kind=st.sampled_from([Claim, Claim, Fetch, Cancel]), n=ANY)
LOOP = wish(lambda play, loop: loop(play), loop=st.sampled_from([reap, retry]))
PASS = wish(lambda play, n, moment: MoveIntoPast(play.key(n), moment), n=ANY, moment=MOMENT)
CLAIM_MANY = wish(claim_many, places=st.integers(1, 4))
TRIGGER = wish(lambda play, scope: Trigger(scope), scope=st.sampled_from(RANGES))
ANYTHING = st.one_of(CALL, CALL, KEYED, LOOP, PASS, CLAIM_MANY, TRIGGER)


class LifecycleMachine(RuleBasedStateMachine):
    """Each rule is a step, or several at once; whatever the answers, some order explains them."""

    stage: ReplicaPair
    tally: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.play = ModelRun(self.stage)
        self.restarts = 0

    @initialize(
        scopes=st.sampled_from([RANGES[:1], RANGES[:2]]), restarts=st.sampled_from([0, 0, 0, 1])
    )
    def begin(self, scopes: tuple[str, ...], restarts: int) -> None:
        self.restarts = restarts
        for step in (*(Trigger(scope) for scope in scopes), Publish(), Publish()):
            self.run_steps(step)

    # --- one after another ------------------------------------------------------------------

    @rule(replica=REPLICA, n=ANY)
    def claim(self, replica: int, n: int) -> None:
        self.run_steps(Claim(self.play.key(n)), first=replica)

    @rule(replica=REPLICA, step=CLAIM_MANY)
    def claim_many(self, replica: int, step: Wish) -> None:
        self.run_steps(step(self.play), first=replica)

    @rule(replica=REPLICA, call=CALL)
    def an_attempt_says(self, replica: int, call: Wish) -> None:
        self.run_steps(call(self.play), first=replica)

    @rule(replica=REPLICA, complete=COMPLETE)
    def an_attempt_ends(self, replica: int, complete: Wish) -> None:
        self.run_steps(complete(self.play), first=replica)

    @rule(replica=REPLICA, call=CALL)
    def an_attempt_repeats_itself(self, replica: int, call: Wish) -> None:
        step = call(self.play)
        self.run_steps(step, first=replica)
        self.run_steps(step, first=1 - replica)

    @rule(replica=REPLICA, step=KEYED)
    def somebody_asks(self, replica: int, step: Wish) -> None:
        self.run_steps(step(self.play), first=replica)

    @rule(replica=REPLICA, trigger=TRIGGER)
    def trigger(self, replica: int, trigger: Wish) -> None:
        self.run_steps(trigger(self.play), first=replica)

    @rule(time_passes=PASS)
    def time_passes(self, time_passes: Wish) -> None:
        self.run_steps(time_passes(self.play))

    @rule(replica=REPLICA, loop=LOOP)
    def loop(self, replica: int, loop: Wish) -> None:
        self.run_steps(loop(self.play), first=replica)

    @rule(replica=REPLICA)
    def publish(self, replica: int) -> None:
        self.run_steps(Publish(), first=replica)

    @rule()
    def everything_falls_due(self) -> None:
        """Dead attempts are reaped and waiting ones start again, on both replicas at once."""
        for key in [k for k, task in self.play.model.tasks.items() if task.status == "Running"]:
            self.run_steps(MoveIntoPast(key, "expired"))
        if self.play.model.overdue():
            self.run_steps(Reap(), Reap())
        for key in [k for k, task in self.play.model.tasks.items() if task.retry]:
            self.run_steps(MoveIntoPast(key, "retry"))
        if self.play.model.due():
            self.run_steps(Retry(), Retry())

    @precondition(lambda self: self.restarts > 0)
    @rule(replica=REPLICA)
    def restart(self, replica: int) -> None:
        self.restarts -= 1
        self.stage.restart(replica)

    # --- at once ----------------------------------------------------------------------------

    @rule(n=ANY)
    def many_claim_one_task(self, n: int) -> None:
        step = Claim(self.play.key(n))
        self.run_steps(step, step, step)

    @rule(step=CLAIM_MANY)
    def many_claim_many(self, step: Wish) -> None:
        self.run_steps(step(self.play), step(self.play))

    @rule(call=CALL)
    def a_caller_loses_patience(self, call: Wish) -> None:
        """And repeats its call while the first try is still under way."""
        step = call(self.play)
        self.run_steps(step, step)

    @rule(one=CALL, other=CALL, moment=MOMENT, n=ANY, end=st.sampled_from([Reap, Retry, Cancel]))
    def an_attempt_races_its_end(
        self, one: Wish, other: Wish, moment: str, n: int, end: type[Step]
    ) -> None:
        held = self.play.attempt(n, prefer_running=True)
        key = held.fence.key if held else self.play.key(n)
        self.run_steps(MoveIntoPast(key, moment))
        self.run_steps(one(self.play), other(self.play), end(key) if end is Cancel else end())

    @rule(wishes=st.lists(ANYTHING, min_size=2, max_size=3))
    def anything_at_once(self, wishes: list[Wish]) -> None:
        self.run_steps(*(make(self.play) for make in wishes))

    def happen(self, *steps: Step, first: int = 0) -> None:
        happened = self.play.run_steps(*steps, first=first)
        self.tally.update(step.summary(answer) for step, answer in happened)

    def teardown(self) -> None:
        self.play.finish()


@pytest.fixture(scope="module")
def machine(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[type[LifecycleMachine]]:
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, replica_pair(secrets, dsns, objects, DAG) as made:
        LifecycleMachine.stage = made
        yield LifecycleMachine


def test_whatever_happens_the_lifecycle_does_as_the_model_says(
    machine: type[LifecycleMachine],
) -> None:
    # Shrinking replays races for minutes: it is for the long profile, where somebody looks on.
    shrinks = settings.get_current_profile_name() != "ci"
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    run_state_machine_as_test(machine, settings=settings(phases=phases))
    assert machine.tally.total() >= 2_000


# --- a tour -------------------------------------------------------------------------------------

A, B, CAPPED = ("work", "p:0-9"), ("work", "p:10-19"), ("capped", "p:0-9")
BOOM = Report("Failed", message="boom")
DONE = Report("Completed", scopes=("c:1",), publishes=True)


def last(make: Callable[[HeldAttempt], Step], n: int = 0) -> Callable[[ModelRun], Step]:
    """A step of the n-th newest attempt."""
    return lambda play: make(play.held[-1 - n])


# Chance may miss a corner; a tour that visits each of them once does not.
TOUR: list[tuple[Step | Callable[[ModelRun], Step], str]] = [
    (Claim(A), "Claim NotClaimed NotFound"),
    (Cancel(A), "Cancel 404"),
    (Fetch(A), "Fetch 404"),
    (Trigger("p:0-9"), "Trigger 200 True"),
    (Trigger("p:0-9"), "Trigger 200 False"),
    (Trigger("p:10-19"), "Trigger 200 True"),
    (Publish(), "Publish 2"),  # the wake-ups of what it routes go out with it
    (Publish(), "Publish 0"),
    (Claim(A), "Claim Claimed 1"),
    (Claim(A), "Claim NotClaimed AlreadyRunning"),
    (last(Heartbeat), "Heartbeat 200 False"),
    (last(lambda held: Heartbeat(held.forged())), "Heartbeat 409 stale_lease"),
    (last(lambda held: Emit(held, ("c:1", "c:2"))), "Emit 200 2"),
    (last(lambda held: Emit(held, ("c:2", "p:0-9"))), "Emit 200 1"),
    (last(lambda held: Emit(held.forged(), ("c:2",))), "Emit 409 stale_lease"),
    (last(lambda held: PublishBatch(held, "s3://b/1")), "PublishBatch 200"),
    (last(lambda held: PublishBatch(held, "s3://b/1")), "PublishBatch 200"),
    (last(lambda held: PublishBatch(held.forged(), "s3://b/1")), "PublishBatch 409 stale_lease"),
    (last(lambda held: Complete(held.forged(), DONE)), "Complete 409 stale_lease"),
    (last(lambda held: Complete(held, BOOM)), "Complete 200 Failed"),
    (last(lambda held: Complete(held, BOOM)), "Complete 200 Failed"),
    (last(lambda held: Complete(held, DONE)), "Complete 409 completion_mismatch"),
    (last(Heartbeat), "Heartbeat 409 not_running"),
    (last(lambda held: Emit(held, ("c:2",))), "Emit 409 not_running"),
    (last(lambda held: PublishBatch(held, "s3://b/2")), "PublishBatch 409 not_running"),
    (Claim(A), "Claim NotClaimed NotReady"),
    (Retry(), "Retry 0"),
    (MoveIntoPast(A, "retry"), "MoveIntoPast"),
    (Retry(), "Retry 1"),
    (last(lambda held: Complete(held, BOOM)), "Complete 409 stale_attempt"),
    (last(Heartbeat), "Heartbeat 409 stale_attempt"),
    (Claim(A), "Claim Claimed 2"),
    (last(Heartbeat, 1), "Heartbeat 409 stale_attempt"),
    (last(lambda held: Emit(held, ("c:2",)), 1), "Emit 409 stale_attempt"),
    (last(lambda held: PublishBatch(held, "s3://b/1"), 1), "PublishBatch 409 stale_attempt"),
    (MoveIntoPast(A, "expired"), "MoveIntoPast"),
    (Reap(), "Reap 1"),
    (last(Heartbeat), "Heartbeat 409 not_running"),
    (last(lambda held: Complete(held, DONE)), "Complete 200 Completed"),
    (last(lambda held: Complete(held, DONE)), "Complete 200 Completed"),
    (Claim(A), "Claim NotClaimed Completed"),
    (Cancel(A), "Cancel 409"),
    (Publish(), "Publish 5"),
    (Claim(B), "Claim Claimed 1"),
    (last(lambda held: Emit(held, ("c:1",))), "Emit 200 1"),
    (Publish(), "Publish 1"),
    (Publish(), "Publish 0"),
    (Cancel(B), "Cancel 200 Running"),
    (last(Heartbeat), "Heartbeat 200 True"),
    (Fetch(B), "Fetch 200 Canceled"),
    (MoveIntoPast(B, "overdue"), "MoveIntoPast"),
    (Reap(), "Reap 1"),
    (last(lambda held: Complete(held, Report("Canceled"))), "Complete 200 Canceled"),
    (Claim(B), "Claim NotClaimed Canceled"),
    (Claim(CAPPED), "Claim Claimed 1"),
    (Claim(("capped", "p:10-19")), "Claim NotClaimed NotReady"),
    (ClaimMany(4), "ClaimMany 3 of 4"),
    (ClaimMany(4), "ClaimMany 0 of 4"),
    (last(lambda held: Complete(held, BOOM), 3), "Complete 200 Failed"),
    (Cancel(CAPPED), "Cancel 200 Canceled"),
    (last(lambda held: Complete(held, BOOM), 3), "Complete 200 Canceled"),
    (Publish(), "Publish 1"),
    (ClaimMany(4), "ClaimMany 1 of 4"),
    (last(lambda held: Complete(held, Report("Failed", retryable=False))), "Complete 200 Failed"),
]


def test_a_tour_of_every_answer(machine: type[LifecycleMachine]) -> None:
    play = ModelRun(machine.stage)
    for n, (made, summary) in enumerate(TOUR):
        step = made if isinstance(made, Step) else made(play)
        ((_, answer),) = play.run_steps(step, first=n)
        assert step.summary(answer) == summary, f"stop {n}: {step}"
    play.finish()
