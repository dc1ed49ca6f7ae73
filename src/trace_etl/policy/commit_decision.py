"""What becomes of an output when its scope, or a part of it, has one already."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trace_etl.model.scope import Range


@dataclass(frozen=True)
class Standing:
    """A committed partition that shares blocks, or the key, with a new output."""

    partition_key: str
    span: Range | None
    is_newer: bool
    """Made by an attempt whose inputs were pinned later."""
    is_cured: bool
    """Its inputs were pinned after the change that the new output is the answer to."""


class Verdict(Enum):
    POINT = "point"
    """Show it; whatever it covers whole goes."""
    SUPERSEDED = "superseded"
    """What stands is as new, or newer: leave it."""
    AGAIN = "again"
    """A part of what stands is newer: the scope must be read once more."""
    OVERLAP = "overlap"
    """It cuts through what stands."""


def verdict(
    partition_key: str, span: Range | None, standing: Sequence[Standing], *, follows: bool = False
) -> Verdict:
    """Whether a new output is shown. A newer reading never makes way for an older one.

    One that `follows` a cursor read all there was up to it: what others show of the same blocks is
    as good, whoever read first.
    """
    same = [s for s in standing if s.partition_key == partition_key]
    if same:
        return Verdict.SUPERSEDED if same[0].is_newer else Verdict.POINT
    if span is None:
        return Verdict.POINT
    others = [(s, s.span) for s in standing if s.span is not None]
    around = [s for s, at in others if at.start <= span.start and span.end <= at.end]
    if any(s.is_newer or s.is_cured for s in around):
        return Verdict.SUPERSEDED
    if follows and _covered(span, [at for _, at in others]):
        return Verdict.SUPERSEDED
    if any(at.start < span.start or span.end < at.end for _, at in others):
        return Verdict.OVERLAP
    return Verdict.AGAIN if not follows and any(s.is_newer for s, _ in others) else Verdict.POINT


def _covered(span: Range, pieces: Sequence[Range]) -> bool:
    reached = span.start - 1
    for piece in sorted(pieces, key=lambda p: p.start):
        if piece.start > reached + 1:
            return False
        reached = max(reached, piece.end)
    return reached >= span.end
