"""A state machine drives two Dispatchers over HTTPS and Postgres, and a model says what must be."""

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
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
    Pass,
    Publish,
    PublishBatch,
    Reap,
    Retry,
    Step,
    Trigger,
)
from support.lifecycle_play import Play
from support.postgres import Templates, copied
from support.replicas import Stage, stage

# Races end as they will, so what Hypothesis draws must not depend on the state: it draws wishes
# ("complete the third newest attempt so"), and a step is made of each when its time comes.
Wish = Callable[[Play], Step]

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

# What happens across a typical run; a machine that does not get there tests less than it says.
WANTED = {
    "Claim Claimed 1",
    "Claim Claimed 2",
    "Claim NotClaimed AlreadyRunning",
    "Claim NotClaimed Canceled",
    "Claim NotClaimed NotFound",
    "Claim NotClaimed NotReady",
    "Complete 200 Canceled",
    "Complete 200 Completed",
    "Complete 200 Failed",
    "Complete 409 completion_mismatch",
    "Complete 409 stale_attempt",
    "Emit 200 0",
    "Emit 200 1",
    "Emit 409 not_running",
    "Emit 409 stale_attempt",
    "Heartbeat 200 False",
    "Heartbeat 409 not_running",
    "Heartbeat 409 stale_attempt",
    "Heartbeat 409 stale_lease",
    "PublishBatch 200",
    "PublishBatch 409 not_running",
    "Cancel 200 Canceled",
    "Cancel 200 Running",
    "Reap 1",
    "Retry 1",
}


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


def of_an_attempt(play: Play, call: str, n: int, lively: bool, forged: bool, **drawn: Any) -> Step:
    held = play.attempt(n, lively)
    if held is None:
        return Claim(play.key(n))
    return CALLS[call](held.forged() if forged else held, **drawn)


def of_a_task(play: Play, kind: Callable[[Key], Step], n: int) -> Step:
    return kind(play.key(n))


def reap(play: Play) -> Step:
    """The reaper, if there is something to reap; or time passes, so that there is."""
    running = [k for k, t in play.model.tasks.items() if t.status == "Running"]
    return Pass(running[-1], "expired") if running and not play.model.overdue() else Reap()


def retry(play: Play) -> Step:
    waiting = [k for k, t in play.model.tasks.items() if t.retry]
    return Pass(waiting[-1], "retry") if waiting and not play.model.due() else Retry()


def claim_many(play: Play, places: int) -> Step:
    """As many as that; or another trigger, so that there is something to claim."""
    missing = [scope for scope in RANGES if ("request", scope) not in play.model.tasks]
    return ClaimMany(places) if play.model.claimable(1) or not missing else Trigger(missing[0])


CALL = wish(of_an_attempt, call=st.sampled_from(list(CALLS)), **WHICH, **WHAT)
COMPLETE = wish(of_an_attempt, call=st.just("complete"), **WHICH, report=REPORT)
KEYED = wish(of_a_task, kind=st.sampled_from([Claim, Claim, Fetch, Cancel]), n=ANY)
LOOP = wish(lambda play, loop: loop(play), loop=st.sampled_from([reap, retry]))
PASS = wish(lambda play, n, moment: Pass(play.key(n), moment), n=ANY, moment=MOMENT)
CLAIM_MANY = wish(claim_many, places=st.integers(1, 4))
TRIGGER = wish(lambda play, scope: Trigger(scope), scope=st.sampled_from(RANGES))
ANYTHING = st.one_of(CALL, CALL, KEYED, LOOP, PASS, CLAIM_MANY, TRIGGER)


class LifecycleMachine(RuleBasedStateMachine):
    """Each rule is a step, or several at once; whatever the answers, some order explains them."""

    stage: Stage
    tally: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(self.stage)
        self.restarts = 0

    @initialize(
        scopes=st.sampled_from([RANGES[:1], RANGES[:2]]), restarts=st.sampled_from([0, 0, 0, 1])
    )
    def begin(self, scopes: tuple[str, ...], restarts: int) -> None:
        self.restarts = restarts
        for step in (*(Trigger(scope) for scope in scopes), Publish(), Publish()):
            self.happen(step)

    # --- one after another ------------------------------------------------------------------

    @rule(replica=REPLICA, n=ANY)
    def claim(self, replica: int, n: int) -> None:
        self.happen(Claim(self.play.key(n)), first=replica)

    @rule(replica=REPLICA, step=CLAIM_MANY)
    def claim_many(self, replica: int, step: Wish) -> None:
        self.happen(step(self.play), first=replica)

    @rule(replica=REPLICA, call=CALL)
    def an_attempt_says(self, replica: int, call: Wish) -> None:
        self.happen(call(self.play), first=replica)

    @rule(replica=REPLICA, complete=COMPLETE)
    def an_attempt_ends(self, replica: int, complete: Wish) -> None:
        self.happen(complete(self.play), first=replica)

    @rule(replica=REPLICA, call=CALL)
    def an_attempt_repeats_itself(self, replica: int, call: Wish) -> None:
        step = call(self.play)
        self.happen(step, first=replica)
        self.happen(step, first=1 - replica)

    @rule(replica=REPLICA, step=KEYED)
    def somebody_asks(self, replica: int, step: Wish) -> None:
        self.happen(step(self.play), first=replica)

    @rule(replica=REPLICA, trigger=TRIGGER)
    def trigger(self, replica: int, trigger: Wish) -> None:
        self.happen(trigger(self.play), first=replica)

    @rule(time_passes=PASS)
    def time_passes(self, time_passes: Wish) -> None:
        self.happen(time_passes(self.play))

    @rule(replica=REPLICA, loop=LOOP)
    def loop(self, replica: int, loop: Wish) -> None:
        self.happen(loop(self.play), first=replica)

    @rule(replica=REPLICA)
    def publish(self, replica: int) -> None:
        self.happen(Publish(), first=replica)

    @rule(replica=REPLICA)
    def everything_falls_due(self, replica: int) -> None:
        """Dead attempts are reaped, and waiting ones start again."""
        for key in [k for k, task in self.play.model.tasks.items() if task.status == "Running"]:
            self.happen(Pass(key, "expired"))
        if self.play.model.overdue():
            self.happen(Reap(), first=replica)
        for key in [k for k, task in self.play.model.tasks.items() if task.retry]:
            self.happen(Pass(key, "retry"))
        if self.play.model.due():
            self.happen(Retry(), first=replica)

    @precondition(lambda self: self.restarts > 0)
    @rule(replica=REPLICA)
    def restart(self, replica: int) -> None:
        self.restarts -= 1
        self.stage.restart(replica)

    # --- at once ----------------------------------------------------------------------------

    @rule(n=ANY)
    def many_claim_one_task(self, n: int) -> None:
        step = Claim(self.play.key(n))
        self.happen(step, step, step)

    @rule(step=CLAIM_MANY)
    def many_claim_many(self, step: Wish) -> None:
        self.happen(step(self.play), step(self.play))

    @rule(call=CALL)
    def a_caller_loses_patience(self, call: Wish) -> None:
        """And repeats its call while the first try is still under way."""
        step = call(self.play)
        self.happen(step, step)

    @rule(one=CALL, other=CALL, moment=MOMENT, n=ANY, end=st.sampled_from([Reap, Retry, Cancel]))
    def an_attempt_races_its_end(
        self, one: Wish, other: Wish, moment: str, n: int, end: type[Step]
    ) -> None:
        held = self.play.attempt(n, lively=True)
        key = held.fence.key if held else self.play.key(n)
        self.happen(Pass(key, moment))
        self.happen(one(self.play), other(self.play), end(key) if end is Cancel else end())

    @rule(wishes=st.lists(ANYTHING, min_size=2, max_size=3))
    def anything_at_once(self, wishes: list[Wish]) -> None:
        self.happen(*(make(self.play) for make in wishes))

    def happen(self, *steps: Step, first: int = 0) -> None:
        happened = self.play.happen(*steps, first=first)
        self.tally.update(step.summary(answer) for step, answer in happened)

    def teardown(self) -> None:
        self.play.finish()


@pytest.fixture
def machine(
    templates: Templates, secrets: Secrets, tmp_path: Path
) -> Generator[type[LifecycleMachine]]:
    with copied(templates) as dsns, stage(secrets, dsns, tmp_path / "objects", DAG) as made:
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
    assert not WANTED - machine.tally.keys()
