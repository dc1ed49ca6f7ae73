"""A run of lifecycle steps: after each step, the databases must match a state the model allows."""

from collections.abc import Iterator
from itertools import permutations

from support.lifecycle.lifecycle_model import KEYS, Answer, Key, Model
from support.lifecycle.lifecycle_ops import HeldAttempt, Step, StepContext
from support.lifecycle.lifecycle_view import differences
from support.services.replicas import ReplicaPair

StepAnswers = list[tuple[Step, Answer]]


class ModelRun:
    """The model's current state, and the attempts claimed so far."""

    def __init__(self, pair: ReplicaPair) -> None:
        self.pair = pair
        self.model = Model()
        self.held: list[HeldAttempt] = []
        self.ids: dict[Key, str] = {}

    # --- choosing tasks and attempts ------------------------------------------------------------------------------

    def key(self, n: int) -> Key:
        """Return the n-th newest task; past the oldest, a task that may not exist yet."""
        known = [key for key in reversed(self.model.tasks) if key[0] != "request"]
        return [*known, KEYS[n]][n % (len(known) + 1)]

    def attempt(self, n: int, prefer_running: bool = True) -> HeldAttempt | None:
        """Return the n-th newest attempt, modulo their number; prefer running attempts."""
        running = [
            attempt
            for attempt in self.held
            if self.model.tasks[attempt.fence.key].status == "Running"
            and self.model.tasks[attempt.fence.key].lease == attempt.fence.lease
        ]
        attempts = running if prefer_running and running else self.held
        return attempts[-1 - n % len(attempts)] if attempts else None

    # --- running steps -----------------------------------------------------------------------

    def run_steps(self, *steps: Step, first: int = 0) -> StepAnswers:
        """Run the steps concurrently, and find an order of them that explains the result."""
        contexts = [self.context(first + n) for n in range(len(steps))]
        pairs = list(zip(steps, contexts, strict=True))
        if len(steps) == 1:
            answers = [steps[0].run(contexts[0])]
        else:
            answers = self.pair.run_concurrently([lambda s=s, c=c: s.run(c) for s, c in pairs])
        self.held += [attempt for context in contexts for attempt in context.claimed_attempts]
        answered = list(zip(steps, answers, strict=True))
        self.check(answered)
        return answered

    def context(self, n: int) -> StepContext:
        """Return the context for a step on one of the replicas."""
        replica = self.pair.replicas[n % 2]
        return StepContext(
            replica.live,
            replica.internal,
            replica.user,
            self.pair.recorder,
            self.ids,
            {task_id: key for key, task_id in self.ids.items()},
            self.pair.state.execute,
        )

    # --- comparing with the model -------------------------------------------------------------------

    def check(self, answered: StepAnswers) -> None:
        """Adopt the model state that explains the result. Raises AssertionError if none does."""
        view = self.pair.view()
        actual = view.model()
        self.check_growth(actual)
        why: list[str] = []
        for after, mismatches in explanations(self.model, answered):
            mismatches = mismatches or differences(after, actual)
            if not mismatches:
                self.model, self.ids = after, view.ids
                return
            why += [f"  {mismatch}" for mismatch in mismatches] + ["  or:"]
        answers = "\n".join(f"{step} answered {answer}" for step, answer in answered)
        raise AssertionError(f"the model does not allow this:\n{answers}\n" + "\n".join(why[:-1]))

    def check_growth(self, actual: Model) -> None:
        """Check that no attempt number decreases and no recorded row disappears."""
        for key, task in self.model.tasks.items():
            assert actual.tasks[key].attempt >= task.attempt, f"{key} lost an attempt"
        for part in ("ended", "events", "partitions"):
            lost = getattr(self.model, part).keys() - getattr(actual, part).keys()
            assert not lost, f"{part} lost {lost}"

    def finish(self) -> None:
        """Check the whole run with the history checker, and clean both databases."""
        recorder = self.pair.recorder
        recorder.dump_from(self.pair.state, self.pair.queue)
        verdict = recorder.verdict()
        self.pair.clean()
        assert verdict.proven, "\n".join(str(v) for v in verdict.violations)


def explanations(model: Model, answered: StepAnswers) -> Iterator[tuple[Model, list[str]]]:
    """Yield, for every order of the steps, the resulting model state and the mismatches."""
    alone = len(answered) == 1
    for order in permutations(answered):
        yield from _in_order(model, list(order), alone)


def _in_order(model: Model, steps: StepAnswers, alone: bool) -> Iterator[tuple[Model, list[str]]]:
    if not steps:
        yield model, []
        return
    (step, actual), *rest = steps
    possible = False
    for expected, after in step.outcomes(model, actual, alone):
        if expected == actual:
            possible = True
            yield from _in_order(after, rest, alone)
        else:
            yield model, [f"{step} should answer {expected}, not {actual}"]
    if not possible:
        yield model, [f"{step} should not answer {actual}"]
