"""Split a backfill into chunks that fit the partitions that already exist."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trace_etl.dag.operators import NON_PUBLISHERS
from trace_etl.model.flow import ChunkAction
from trace_etl.model.scope import Range
from trace_etl.policy.ranges import split_range

DEFAULT_CHUNK = 1000


@dataclass(frozen=True)
class ExistingScope:
    """A committed partition, or a scope whose task is completed."""

    span: Range
    rows: int | None


@dataclass(frozen=True)
class Chunk:
    """A part of a backfill's range and the action that it needs."""

    span: Range
    action: ChunkAction
    rows: int | None
    """The row count if the chunk is already built, otherwise an estimate; None: unknown."""


def keeps_partitions(operator: str, update_strategy: str) -> bool:
    """Return whether a job writes partitions, rather than forwarding scopes or upserting rows."""
    return operator not in NON_PUBLISHERS and update_strategy == "replace"


def choose_chunk_size(
    requested: int | None,
    split_size: int | None,
    lengths: Sequence[int],
    *,
    range_length: int,
    is_forwarder: bool,
) -> int:
    """Return the blocks per chunk.

    In this order: the requested size, the whole range for a job that forwards scopes, the size that
    the upstream job splits into, the most frequent partition length, and DEFAULT_CHUNK.
    """
    if requested is not None:
        return requested
    if is_forwarder:
        return range_length
    return split_size or (max(set(lengths), key=lengths.count) if lengths else DEFAULT_CHUNK)


def plan_chunks(
    requested: Range,
    size: int,
    existing: Sequence[ExistingScope],
    input_spans: Sequence[Range] | None,
    *,
    force: bool,
    density: float | None,
) -> list[Chunk]:
    """Return the chunks of a range in block order. Existing partitions are never split.

    `input_spans` are the partitions that the job reads; None: the job can run for any range.
    `density` is the number of rows per block, from which row counts are estimated.
    """
    known = [e for e in existing if _overlaps(e.span, requested)]
    chunks = [Chunk(e.span, "rebuild" if force else "there", e.rows) for e in known]
    if input_spans is None:
        free = _subtract([requested], (e.span for e in known))
        spans = [Range(a, b) for span in free for a, b in split_range(span.start, span.end, size)]
    else:
        covered = [span for span in input_spans if _overlaps(span, requested)]
        spans = _subtract(covered, (e.span for e in existing))
        without_input = _subtract([requested], [*covered, *(e.span for e in known)])
        chunks += [Chunk(span, "no_input", None) for span in without_input]
    for span in spans:
        rows = None if density is None else round(span.length * density)
        chunks.append(Chunk(span, "build", rows))
    return sorted(chunks, key=lambda chunk: chunk.span.start)


def _overlaps(a: Range, b: Range) -> bool:
    return a.start <= b.end and b.start <= a.end


def _subtract(spans: Iterable[Range], removed: Iterable[Range]) -> list[Range]:
    """Return the parts of `spans` that no range of `removed` covers."""
    cuts = sorted(removed, key=lambda cut: cut.start)
    remaining: list[Range] = []
    for span in spans:
        start = span.start
        for cut in cuts:
            if cut.end < start or cut.start > span.end:
                continue
            if cut.start > start:
                remaining.append(Range(start, cut.start - 1))
            start = max(start, cut.end + 1)
        if start <= span.end:
            remaining.append(Range(start, span.end))
    return remaining


def estimate_time_left(done: int, left: int, seconds: float) -> tuple[float, float | None]:
    """Return the blocks per second so far and the seconds that the rest takes; None: unknown."""
    rate = done / seconds if seconds > 0 else 0.0
    return rate, (left / rate if rate > 0 else 0.0 if not left else None)
