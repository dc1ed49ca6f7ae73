"""Interleaved runs, medians, and one shape for every result."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Measure = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """`ratio` is ours over the reference, both of this run; `goal` says what it must be."""

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
    """Run both in turns, so that a noisy neighbour hits both; compare their medians."""
    pairs = [(ours(), reference()) for _ in range(rounds)]
    mine = statistics.median(p[0] for p in pairs)
    theirs = statistics.median(p[1] for p in pairs)
    return Result(name, mine, theirs, unit, mine / theirs, goal)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
