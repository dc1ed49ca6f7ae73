"""Cutting a backfill into chunks that fit what is there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trace_etl.dag.operators import FORWARDERS
from trace_etl.model.scope import Range
from trace_etl.policy.ranges import split

Action = Literal["build", "rebuild", "there", "no_input"]
DEFAULT_CHUNK = 1000


@dataclass(frozen=True)
class ExistingScope:
    """A partition that is committed, or a scope that was worked off."""

    span: Range
    rows: int | None


@dataclass(frozen=True)
class Chunk:
    span: Range
    action: Action
    rows: int | None
    """What it holds if it is there, what it may hold if not; None: nobody can tell."""


def keeps_partitions(operator: str, update_strategy: str) -> bool:
    """Whether a job's output is partitions, as opposed to passed-on scopes or upserted rows."""
    return operator not in FORWARDERS and update_strategy == "replace"


def choose_chunk_size(
    asked: int | None, splitter: int | None, lengths: Sequence[int], *, whole: int, relays: bool
) -> int:
    """As asked, as upstream splits, or as most partitions are; a relay takes the range whole."""
    if asked is not None:
        return asked
    if relays:
        return whole
    return splitter or (max(set(lengths), key=lengths.count) if lengths else DEFAULT_CHUNK)


def plan_chunks(
    asked: Range,
    size: int,
    there: Sequence[ExistingScope],
    feed: Sequence[Range] | None,
    *,
    force: bool,
    density: float | None,
) -> list[Chunk]:
    """The chunks of a range, in order. Partitions that exist are never cut.

    `feed` are the partitions that the job reads; None: it reads whatever scope it is given.
    """
    known = [e for e in there if _overlap(e.span, asked)]
    chunks = [Chunk(e.span, "rebuild" if force else "there", e.rows) for e in known]
    if feed is None:
        holes = _minus([asked], (e.span for e in known))
        spans = [Range(a, b) for hole in holes for a, b in split(hole.start, hole.end, size)]
    else:
        fed = [f for f in feed if _overlap(f, asked)]
        spans = _minus(fed, (e.span for e in there))
        dry = _minus([asked], [*fed, *(e.span for e in known)])
        chunks += [Chunk(span, "no_input", None) for span in dry]
    chunks += [Chunk(span, "build", _rows(span, density)) for span in spans]
    return sorted(chunks, key=lambda chunk: chunk.span.start)


def _rows(span: Range, density: float | None) -> int | None:
    return None if density is None else round(span.length * density)


def _overlap(one: Range, other: Range) -> bool:
    return one.start <= other.end and other.start <= one.end


def _minus(spans: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """What is left of spans without those that are taken."""
    holes = sorted(taken, key=lambda t: t.start)
    left: list[Range] = []
    for span in spans:
        start = span.start
        for hole in holes:
            if hole.end < start or hole.start > span.end:
                continue
            if hole.start > start:
                left.append(Range(start, hole.start - 1))
            start = max(start, hole.end + 1)
        if start <= span.end:
            left.append(Range(start, span.end))
    return left


def estimate_time_left(done: int, left: int, seconds: float) -> tuple[float, float | None]:
    """Blocks a second, and how many seconds the rest takes at that rate; None: nobody can tell."""
    rate = done / seconds if seconds > 0 else 0.0
    return rate, (left / rate if rate > 0 else 0.0 if not left else None)
