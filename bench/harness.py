"""Interleaved runs, medians, and one shape for every result."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Measure = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """`ratio` is ours over the reference, both of this run; `goal` says what it must be.

    `ours` and `reference` are medians of all rounds, for the reader: their quotient may be another.
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
    """Run both in turns, each round the other way round; the ratio is the median of the rounds'.

    A noisy neighbour may stay for a few rounds, and then hits both runs of each: so every run is
    compared with the one beside it.
    """
    pairs: list[tuple[float, float]] = []
    for turn in range(rounds):
        if turn % 2:
            theirs = reference()
            pairs.append((ours(), theirs))
        else:
            mine = ours()
            pairs.append((mine, reference()))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Result(name, mine, theirs, unit, ratio, goal)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
