"""Split block ranges into partitions, and find the gaps between ranges."""

from trace_etl.model.scope import Range


def split_range(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Split a range at multiples of `size`, so that overlapping requests share partitions."""
    pieces: list[tuple[int, int]] = []
    while start <= end:
        stop = min(end, start - start % size + size - 1)
        pieces.append((start, stop))
        start = stop + 1
    return pieces


def find_gaps(ranges: list[Range]) -> list[Range]:
    """Return the gaps between the first and the last block that the ranges cover."""
    gaps: list[Range] = []
    covered_to: int | None = None
    for piece in sorted(ranges, key=lambda r: r.start):
        if covered_to is not None and piece.start > covered_to + 1:
            gaps.append(Range(covered_to + 1, piece.start - 1))
        covered_to = piece.end if covered_to is None else max(covered_to, piece.end)
    return gaps
