"""Decide what happens to a new output when its scope, or a part of it, is already committed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trace_etl.model.scope import Range


@dataclass(frozen=True)
class ExistingPartition:
    """A committed partition that shares blocks, or the key, with a new output."""

    partition_key: str
    span: Range | None
    is_newer: bool
    """An attempt that pinned its inputs later than the new output's attempt made it."""
    is_cured: bool
    """Its inputs were pinned after the change that the new output answers."""


class Verdict(Enum):
    POINT = "point"
    """Commit the output, and remove the partitions that it covers whole."""
    SUPERSEDED = "superseded"
    """The committed partition is as new, or newer: leave it."""
    AGAIN = "again"
    """A part of what is committed is newer: run the scope again."""
    OVERLAP = "overlap"
    """The output cuts through a committed partition."""


def verdict(
    partition_key: str,
    span: Range | None,
    existing: Sequence[ExistingPartition],
    *,
    follows: bool = False,
) -> Verdict:
    """Decide whether a new output is committed. An older reading never replaces a newer one.

    An output that `follows` a cursor was read from all blocks up to that cursor. Committed
    partitions of the same blocks are as good, whichever attempt read first.
    """
    same = [e for e in existing if e.partition_key == partition_key]
    if same:
        return Verdict.SUPERSEDED if same[0].is_newer else Verdict.POINT
    if span is None:
        return Verdict.POINT
    others = [(e, e.span) for e in existing if e.span is not None]
    around = [e for e, at in others if at.start <= span.start and span.end <= at.end]
    if any(e.is_newer or e.is_cured for e in around):
        return Verdict.SUPERSEDED
    if follows and _covered(span, [at for _, at in others]):
        return Verdict.SUPERSEDED
    if any(at.start < span.start or span.end < at.end for _, at in others):
        return Verdict.OVERLAP
    return Verdict.AGAIN if not follows and any(e.is_newer for e, _ in others) else Verdict.POINT


def _covered(span: Range, pieces: Sequence[Range]) -> bool:
    reached = span.start - 1
    for piece in sorted(pieces, key=lambda p: p.start):
        if piece.start > reached + 1:
            return False
        reached = max(reached, piece.end)
    return reached >= span.end
