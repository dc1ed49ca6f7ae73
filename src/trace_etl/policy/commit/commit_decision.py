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
    """Whether its attempt pinned its inputs later than the attempt of the new output."""
    is_cured: bool
    """Whether its inputs were pinned after the invalidation that the new output repairs."""
    content_hash: str | None = None
    is_provisional: bool = False
    """Whether it has blocks that were not final when they were read."""


class CommitDecision(Enum):
    """What to do with a new output."""

    COMMIT = "commit"
    """Commit the output, and remove the partitions that it covers completely."""
    SUPERSEDED = "superseded"
    """Keep the committed partition: it is at least as new as the output."""
    RUN_AGAIN = "run_again"
    """Run the scope again: a committed partition inside it is newer than the output."""
    CONFIRM = "confirm"
    """Keep the committed partition: the output has the same rows, and its blocks are final."""
    OVERLAP = "overlap"
    """Reject the output: it covers only a part of a committed partition."""


def decide_commit(
    partition_key: str,
    span: Range | None,
    existing: Sequence[ExistingPartition],
    *,
    follows: bool = False,
    final_hash: str | None = None,
) -> CommitDecision:
    """Decide whether a new output is committed. An older output never replaces a newer one.

    An output that `follows` a cursor was computed from all blocks up to that cursor. Committed
    partitions of the same blocks are equivalent to it, no matter which attempt read its inputs first.
    `final_hash` is the content hash of an output whose blocks are final.
    """
    same = [e for e in existing if e.partition_key == partition_key]
    if same:
        is_known = final_hash is not None and same[0].content_hash == final_hash
        if is_known and same[0].is_provisional and not same[0].is_newer:
            return CommitDecision.CONFIRM
        return CommitDecision.SUPERSEDED if same[0].is_newer else CommitDecision.COMMIT
    if span is None:
        return CommitDecision.COMMIT
    overlapping = [(e, e.span) for e in existing if e.span is not None]
    around = [
        e
        for e, other_span in overlapping
        if other_span.start <= span.start and span.end <= other_span.end
    ]
    if any(e.is_newer or e.is_cured for e in around):
        return CommitDecision.SUPERSEDED
    if follows and _are_covering(span, [other_span for _, other_span in overlapping]):
        return CommitDecision.SUPERSEDED
    if any(
        other_span.start < span.start or span.end < other_span.end for _, other_span in overlapping
    ):
        return CommitDecision.OVERLAP
    is_partly_older = not follows and any(e.is_newer for e, _ in overlapping)
    return CommitDecision.RUN_AGAIN if is_partly_older else CommitDecision.COMMIT


def _are_covering(span: Range, pieces: Sequence[Range]) -> bool:
    covered_to = span.start - 1
    for piece in sorted(pieces, key=lambda p: p.start):
        if piece.start > covered_to + 1:
            return False
        covered_to = max(covered_to, piece.end)
    return covered_to >= span.end
