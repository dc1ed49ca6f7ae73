"""A state machine runs random steps on two Dispatchers and compares every result with a model."""

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

from support.lifecycle.lifecycle_model import DAG, RANGES, SCOPES, Key, Report
from support.lifecycle.lifecycle_ops import (
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
    Reap,
    Retry,
    Step,
    Trigger,
)
from support.lifecycle.lifecycle_run import ModelRun
from support.services.dispatcher import Secrets
from support.services.postgres import Templates, copied
from support.services.replicas import ReplicaPair, replica_pair

# The outcome of races varies, so what Hypothesis draws must not depend on the state: it draws
# step factories ("complete the third newest attempt"), which are resolved when they run.
StepFactory = Callable[[ModelRun], Step]

REPLICA = st.integers(0, 1)
ANY = st.integers(0, 7)
"""Index of a task or an attempt, counted from the newest."""
PREFER_RUNNING = st.sampled_from([True, True, True, False])
"""Whether to choose among running attempts, if any."""
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
MOMENT = st.sampled_from(["expired", "expired", "overdue", "retry"])
FORGED = st.sampled_from([False] * 9 + [True])


def draw_step(
    make: Callable[..., Step], **drawn: st.SearchStrategy
) -> st.SearchStrategy[StepFactory]:
    """Draw the parameters of a step that is created later from the current model."""
    return st.fixed_dictionaries(drawn).map(lambda values: lambda run: make(run, **values))


# --- step factories -------------------------------------------------------------------------------------

CALLS: dict[str, Callable[..., Step]] = {
    "emit": lambda held, scopes, **_: Emit(held, scopes),
    "heartbeat": lambda held, **_: Heartbeat(held),
    "complete": lambda held, report, **_: Complete(held, report),
}
ATTEMPT_DRAWS = {"n": ANY, "prefer_running": PREFER_RUNNING, "forged": FORGED}
CONTENT_DRAWS = {"report": REPORT, "scopes": SOME}


def step_of_attempt(
    run: ModelRun, call: str, n: int, prefer_running: bool, forged: bool, **drawn: Any
) -> Step:
    attempt = run.attempt(n, prefer_running)
    if attempt is None:
        return Claim(run.key(n))
    return CALLS[call](attempt.forged() if forged else attempt, **drawn)


def step_of_task(run: ModelRun, kind: Callable[[Key], Step], n: int) -> Step:
    return kind(run.key(n))


def reap(run: ModelRun) -> Step:
    """Run the reaper, or first expire a lease so that there is something to reap."""
    running = [k for k, t in run.model.tasks.items() if t.status == "Running"]
    return MoveIntoPast(running[-1], "expired") if running and not run.model.overdue() else Reap()


def retry(run: ModelRun) -> Step:
    waiting = [k for k, t in run.model.tasks.items() if t.retry]
    return MoveIntoPast(waiting[-1], "retry") if waiting and not run.model.due() else Retry()


def claim_many(run: ModelRun, max_tasks: int) -> Step:
    """Claim several tasks, or trigger a range so that there is something to claim."""
    missing = [scope for scope in RANGES if ("request", scope) not in run.model.tasks]
    return ClaimMany(max_tasks) if run.model.claimable(1) or not missing else Trigger(missing[0])


CALL = draw_step(
    step_of_attempt, call=st.sampled_from(list(CALLS)), **ATTEMPT_DRAWS, **CONTENT_DRAWS
)
COMPLETE = draw_step(step_of_attempt, call=st.just("complete"), **ATTEMPT_DRAWS, report=REPORT)
KEYED = draw_step(step_of_task, kind=st.sampled_from([Claim, Claim, Fetch, Cancel]), n=ANY)
LOOP = draw_step(lambda run, loop: loop(run), loop=st.sampled_from([reap, retry]))
PASS = draw_step(lambda run, n, moment: MoveIntoPast(run.key(n), moment), n=ANY, moment=MOMENT)
CLAIM_MANY = draw_step(claim_many, max_tasks=st.integers(1, 4))
TRIGGER = draw_step(lambda run, scope: Trigger(scope), scope=st.sampled_from(RANGES))
ANYTHING = st.one_of(CALL, CALL, KEYED, LOOP, PASS, CLAIM_MANY, TRIGGER)


class LifecycleMachine(RuleBasedStateMachine):
    """Each rule runs one or several concurrent steps; some order of them must explain the answers."""

    pair: ReplicaPair
    step_counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.model_run = ModelRun(self.pair)
        self.restarts = 0

    @initialize(
        scopes=st.sampled_from([RANGES[:1], RANGES[:2]]), restarts=st.sampled_from([0, 0, 0, 1])
    )
    def begin(self, scopes: tuple[str, ...], restarts: int) -> None:
        self.restarts = restarts
        for step in (*(Trigger(scope) for scope in scopes), Publish(), Publish()):
            self.run_steps(step)

    # --- sequential steps -------------------------------------------------------------------

    @rule(replica=REPLICA, n=ANY)
    def claim(self, replica: int, n: int) -> None:
        self.run_steps(Claim(self.model_run.key(n)), first=replica)

    @rule(replica=REPLICA, step=CLAIM_MANY)
    def claim_many(self, replica: int, step: StepFactory) -> None:
        self.run_steps(step(self.model_run), first=replica)

    @rule(replica=REPLICA, call=CALL)
    def call_of_attempt(self, replica: int, call: StepFactory) -> None:
        self.run_steps(call(self.model_run), first=replica)

    @rule(replica=REPLICA, complete=COMPLETE)
    def completion(self, replica: int, complete: StepFactory) -> None:
        self.run_steps(complete(self.model_run), first=replica)

    @rule(replica=REPLICA, call=CALL)
    def repeated_call(self, replica: int, call: StepFactory) -> None:
        step = call(self.model_run)
        self.run_steps(step, first=replica)
        self.run_steps(step, first=1 - replica)

    @rule(replica=REPLICA, step=KEYED)
    def call_of_task(self, replica: int, step: StepFactory) -> None:
        self.run_steps(step(self.model_run), first=replica)

    @rule(replica=REPLICA, trigger=TRIGGER)
    def trigger(self, replica: int, trigger: StepFactory) -> None:
        self.run_steps(trigger(self.model_run), first=replica)

    @rule(time_passes=PASS)
    def time_passes(self, time_passes: StepFactory) -> None:
        self.run_steps(time_passes(self.model_run))

    @rule(replica=REPLICA, loop=LOOP)
    def loop(self, replica: int, loop: StepFactory) -> None:
        self.run_steps(loop(self.model_run), first=replica)

    @rule(replica=REPLICA)
    def publish(self, replica: int) -> None:
        self.run_steps(Publish(), first=replica)

    @rule()
    def expire_and_retry_everything(self) -> None:
        """Expire and reap all running attempts, then start all retries, on both replicas concurrently."""
        for key in [
            k for k, task in self.model_run.model.tasks.items() if task.status == "Running"
        ]:
            self.run_steps(MoveIntoPast(key, "expired"))
        if self.model_run.model.overdue():
            self.run_steps(Reap(), Reap())
        for key in [k for k, task in self.model_run.model.tasks.items() if task.retry]:
            self.run_steps(MoveIntoPast(key, "retry"))
        if self.model_run.model.due():
            self.run_steps(Retry(), Retry())

    @precondition(lambda self: self.restarts > 0)
    @rule(replica=REPLICA)
    def restart(self, replica: int) -> None:
        self.restarts -= 1
        self.pair.restart(replica)

    # --- concurrent steps ----------------------------------------------------------------------------

    @rule(n=ANY)
    def concurrent_claims_of_one_task(self, n: int) -> None:
        step = Claim(self.model_run.key(n))
        self.run_steps(step, step, step)

    @rule(step=CLAIM_MANY)
    def concurrent_claims_of_many(self, step: StepFactory) -> None:
        self.run_steps(step(self.model_run), step(self.model_run))

    @rule(call=CALL)
    def concurrent_repetition(self, call: StepFactory) -> None:
        """Repeat a call while the first one is still running."""
        step = call(self.model_run)
        self.run_steps(step, step)

    @rule(one=CALL, other=CALL, moment=MOMENT, n=ANY, end=st.sampled_from([Reap, Retry, Cancel]))
    def calls_race_the_end_of_an_attempt(
        self, one: StepFactory, other: StepFactory, moment: str, n: int, end: type[Step]
    ) -> None:
        attempt = self.model_run.attempt(n, prefer_running=True)
        key = attempt.fence.key if attempt else self.model_run.key(n)
        self.run_steps(MoveIntoPast(key, moment))
        self.run_steps(
            one(self.model_run), other(self.model_run), end(key) if end is Cancel else end()
        )

    @rule(factories=st.lists(ANYTHING, min_size=2, max_size=3))
    def any_concurrent_steps(self, factories: list[StepFactory]) -> None:
        self.run_steps(*(make(self.model_run) for make in factories))

    def run_steps(self, *steps: Step, first: int = 0) -> None:
        answered = self.model_run.run_steps(*steps, first=first)
        self.step_counts.update(step.summary(answer) for step, answer in answered)

    def teardown(self) -> None:
        self.model_run.finish()


@pytest.fixture(scope="module")
def machine(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[type[LifecycleMachine]]:
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, replica_pair(secrets, dsns, objects, DAG) as pair:
        LifecycleMachine.pair = pair
        yield LifecycleMachine


def test_random_lifecycle_steps_match_the_model(
    machine: type[LifecycleMachine],
) -> None:
    # Shrinking repeats races for minutes, so only the long profile does it.
    shrinks = settings.get_current_profile_name() != "ci"
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    examples = max(30, settings.default.max_examples)
    run_state_machine_as_test(machine, settings=settings(phases=phases, max_examples=examples))
    assert machine.step_counts.total() >= 1_000


# --- fixed sequence -------------------------------------------------------------------------------------

A, B, CAPPED = ("work", "p:0-9"), ("work", "p:10-19"), ("capped", "p:0-9")
BOOM = Report("Failed", message="boom")
DONE = Report("Completed", scopes=("c:1",), publishes=True)


def last(make: Callable[[HeldAttempt], Step], n: int = 0) -> Callable[[ModelRun], Step]:
    """Return a factory for a step of the n-th newest attempt."""
    return lambda run: make(run.held[-1 - n])


# Random steps may miss an answer; this fixed sequence produces each of them once.
SEQUENCE: list[tuple[Step | Callable[[ModelRun], Step], str]] = [
    (Claim(A), "Claim NotClaimed NotFound"),
    (Cancel(A), "Cancel 404"),
    (Fetch(A), "Fetch 404"),
    (Trigger("p:0-9"), "Trigger 200 True"),
    (Trigger("p:0-9"), "Trigger 200 False"),
    (Trigger("p:10-19"), "Trigger 200 True"),
    (Publish(), "Publish 2"),  # routing also sends the wake-ups of the new tasks
    (Publish(), "Publish 0"),
    (Claim(A), "Claim Claimed 1"),
    (Claim(A), "Claim NotClaimed AlreadyRunning"),
    (last(Heartbeat), "Heartbeat 200 False"),
    (last(lambda held: Heartbeat(held.forged())), "Heartbeat 409 stale_lease"),
    (last(lambda held: Emit(held, ("c:1", "c:2"))), "Emit 200 2"),
    (last(lambda held: Emit(held, ("c:2", "p:0-9"))), "Emit 200 1"),
    (last(lambda held: Emit(held.forged(), ("c:2",))), "Emit 409 stale_lease"),
    (last(lambda held: Complete(held.forged(), DONE)), "Complete 409 stale_lease"),
    (last(lambda held: Complete(held, BOOM)), "Complete 200 Failed"),
    (last(lambda held: Complete(held, BOOM)), "Complete 200 Failed"),
    (last(lambda held: Complete(held, DONE)), "Complete 409 completion_mismatch"),
    (last(Heartbeat), "Heartbeat 409 not_running"),
    (last(lambda held: Emit(held, ("c:2",))), "Emit 409 not_running"),
    (Claim(A), "Claim NotClaimed NotReady"),
    (Retry(), "Retry 0"),
    (MoveIntoPast(A, "retry"), "MoveIntoPast"),
    (Retry(), "Retry 1"),
    (last(lambda held: Complete(held, BOOM)), "Complete 409 stale_attempt"),
    (last(Heartbeat), "Heartbeat 409 stale_attempt"),
    (Claim(A), "Claim Claimed 2"),
    (last(Heartbeat, 1), "Heartbeat 409 stale_attempt"),
    (last(lambda held: Emit(held, ("c:2",)), 1), "Emit 409 stale_attempt"),
    (MoveIntoPast(A, "expired"), "MoveIntoPast"),
    (Reap(), "Reap 1"),
    (last(Heartbeat), "Heartbeat 409 not_running"),
    (last(lambda held: Complete(held, DONE)), "Complete 200 Completed"),
    (last(lambda held: Complete(held, DONE)), "Complete 200 Completed"),
    (Claim(A), "Claim NotClaimed Completed"),
    (Cancel(A), "Cancel 409"),
    (Publish(), "Publish 4"),
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


def test_a_fixed_sequence_produces_every_answer(machine: type[LifecycleMachine]) -> None:
    run = ModelRun(machine.pair)
    for n, (make_step, summary) in enumerate(SEQUENCE):
        step = make_step if isinstance(make_step, Step) else make_step(run)
        ((_, answer),) = run.run_steps(step, first=n)
        assert step.summary(answer) == summary, f"step {n}: {step}"
    run.finish()
