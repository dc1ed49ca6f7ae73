"""Compare two measurements in interleaved runs; the result type of all benchmarks."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Measure = Callable[[], float]
MIN_ROUNDS = 3
MAX_SECONDS = 45.0
"""An entry begins no further round after this time, if it has the minimum."""


@dataclass(frozen=True)
class Result:
    """`ratio` is ours divided by the reference; `goal` is its bound.

    `ours` and `reference` are medians over all rounds. `ratio` is the median of the ratios of the
    rounds, so it can differ from their quotient.
    """

    name: str
    ours: float
    reference: float
    unit: str
    ratio: float
    goal: str

    def met(self) -> bool:
        sign, _, bound = self.goal.partition(" ")
        return self.ratio >= float(bound) if sign == ">=" else self.ratio <= float(bound)

    def row(self) -> dict[str, Any]:
        return {key: round(v, 4) if isinstance(v, float) else v for key, v in asdict(self).items()}


def compare(
    name: str, ours: Measure, reference: Measure, *, unit: str, goal: str, rounds: int = 3
) -> Result:
    """Run both in turns, in alternating order; the ratio is the median of the ratios of the rounds.

    Other load on the machine may last for some rounds and then slows both runs of a round, so each
    run is compared with the one of the same round.
    """
    pairs: list[tuple[float, float]] = []
    began = time.monotonic()
    for turn in range(rounds):
        if turn >= MIN_ROUNDS and time.monotonic() - began > MAX_SECONDS:
            break
        if turn % 2:
            theirs = reference()
            pairs.append((ours(), theirs))
        else:
            mine = ours()
            pairs.append((mine, reference()))
        mine, theirs = pairs[-1]
        show_progress(f"{name}: round {turn + 1} of {rounds}: {mine / theirs:.2f}")
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Result(name, mine, theirs, unit, ratio, goal)


def show_progress(text: str) -> None:
    """Print a line to standard error; standard output has the results only."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
