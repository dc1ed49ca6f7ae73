"""Cutting block ranges into partitions."""

from trace_etl.model.scope import Range


def split(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Cut a range at multiples of `size`, so that overlapping requests share their partitions."""
    cuts: list[tuple[int, int]] = []
    while start <= end:
        stop = min(end, start - start % size + size - 1)
        cuts.append((start, stop))
        start = stop + 1
    return cuts


def gaps(ranges: list[Range]) -> list[Range]:
    """The holes between the first and the last block that the ranges cover."""
    holes: list[Range] = []
    reached: int | None = None
    for piece in sorted(ranges, key=lambda r: r.start):
        if reached is not None and piece.start > reached + 1:
            holes.append(Range(reached + 1, piece.start - 1))
        reached = piece.end if reached is None else max(reached, piece.end)
    return holes
