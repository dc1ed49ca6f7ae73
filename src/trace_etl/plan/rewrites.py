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


def verdict(partition_key: str, span: Range | None, standing: Sequence[Standing]) -> Verdict:
    """Whether a new output is shown. A newer reading never makes way for an older one."""
    same = [s for s in standing if s.partition_key == partition_key]
    if same:
        return Verdict.SUPERSEDED if same[0].is_newer else Verdict.POINT
    if span is None:
        return Verdict.POINT
    others = [(s, s.span) for s in standing if s.span is not None]
    around = [s for s, at in others if at.start <= span.start and span.end <= at.end]
    if around:
        stays = around[0].is_newer or around[0].is_cured
        return Verdict.SUPERSEDED if stays else Verdict.OVERLAP
    if any(at.start < span.start or span.end < at.end for _, at in others):
        return Verdict.OVERLAP
    return Verdict.AGAIN if any(s.is_newer for s, _ in others) else Verdict.POINT
