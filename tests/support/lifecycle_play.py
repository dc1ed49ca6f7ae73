"""A run of the lifecycle, judged step by step: what happened must be what the model allows."""

from collections.abc import Iterator
from itertools import permutations

from support.lifecycle_model import KEYS, Answer, Key, Model
from support.lifecycle_ops import Hand, Held, Step
from support.lifecycle_view import differences
from support.replicas import Stage

Happened = list[tuple[Step, Answer]]


class Play:
    """What the model thinks, and what was granted so far."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.model = Model()
        self.held: list[Held] = []
        self.ids: dict[Key, str] = {}

    # --- which ------------------------------------------------------------------------------

    def key(self, n: int) -> Key:
        """The n-th newest task; past the oldest, one that may not exist yet."""
        known = [key for key in reversed(self.model.tasks) if key[0] != "request"]
        return [*known, KEYS[n]][n % (len(known) + 1)]

    def attempt(self, n: int, lively: bool = True) -> Held | None:
        """The n-th newest attempt, or any if there are fewer; one that runs, if there is."""
        running = [
            held
            for held in self.held
            if self.model.tasks[held.fence.key].status == "Running"
            and self.model.tasks[held.fence.key].lease == held.fence.lease
        ]
        found = running if lively and running else self.held
        return found[-1 - n % len(found)] if found else None

    # --- what happens -----------------------------------------------------------------------

    def happen(self, *steps: Step, first: int = 0) -> Happened:
        """Let the steps happen, all at once, and find the order that explains what came of it."""
        hands = [self.hand(first + n) for n in range(len(steps))]
        pairs = list(zip(steps, hands, strict=True))
        if len(steps) == 1:
            answers = [steps[0].run(hands[0])]
        else:
            answers = self.stage.at_once([lambda s=s, h=h: s.run(h) for s, h in pairs])
        self.held += [held for hand in hands for held in hand.won]
        happened = list(zip(steps, answers, strict=True))
        self.judge(happened)
        return happened

    def hand(self, n: int) -> Hand:
        """A hand at one of the replicas."""
        replica = self.stage.replicas[n % 2]
        return Hand(
            replica.live,
            replica.internal,
            replica.user,
            self.stage.recorder,
            self.ids,
            {task_id: key for key, task_id in self.ids.items()},
            self.stage.state.execute,
        )

    # --- how it is judged -------------------------------------------------------------------

    def judge(self, happened: Happened) -> None:
        """Take over what the model makes of it. Raises AssertionError if nothing explains it."""
        view = self.stage.view()
        seen = view.model()
        self.check_growth(seen)
        why: list[str] = []
        for after, doubts in explanations(self.model, happened):
            doubts = doubts or differences(after, seen)
            if not doubts:
                self.model, self.ids = after, view.ids
                return
            why += [f"  {doubt}" for doubt in doubts] + ["  or:"]
        said = "\n".join(f"{step} answered {answer}" for step, answer in happened)
        raise AssertionError(f"nothing explains this:\n{said}\n" + "\n".join(why[:-1]))

    def check_growth(self, seen: Model) -> None:
        """What holds whatever the model thinks: nothing shrinks, and nothing is forgotten."""
        for key, task in self.model.tasks.items():
            assert seen.tasks[key].attempt >= task.attempt, f"{key} lost an attempt"
        for part in ("ended", "events", "partitions", "buffers"):
            lost = getattr(self.model, part).keys() - getattr(seen, part).keys()
            assert not lost, f"{part} lost {lost}"

    def finish(self) -> None:
        """Put the whole run to the history checker, and leave an empty stage."""
        recorder = self.stage.recorder
        recorder.dump_from(self.stage.state, self.stage.queue)
        verdict = recorder.verdict()
        self.stage.clean()
        assert verdict.proven, "\n".join(str(v) for v in verdict.violations)


def explanations(model: Model, happened: Happened) -> Iterator[tuple[Model, list[str]]]:
    """Every order of the steps, with what the model makes of it and what does not fit."""
    alone = len(happened) == 1
    for order in permutations(happened):
        yield from _in_order(model, list(order), alone)


def _in_order(model: Model, steps: Happened, alone: bool) -> Iterator[tuple[Model, list[str]]]:
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
