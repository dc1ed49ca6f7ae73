"""Cutting block ranges, and finding the holes between them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trace_etl.model.scope import Range
from trace_etl.policy.ranges import gaps, split

starts = st.integers(0, 10_000)
lengths = st.integers(1, 5_000)
sizes = st.integers(1, 700)


@given(starts, lengths, sizes)
def test_the_cuts_cover_the_range_without_a_gap_or_an_overlap(start, length, size):
    end = start + length - 1
    cuts = split(start, end, size)
    assert cuts[0][0] == start
    assert cuts[-1][1] == end
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(cuts))
    assert all(b - a + 1 <= size for a, b in cuts)


@given(starts, lengths, sizes)
def test_inner_cuts_lie_on_multiples_so_that_overlapping_requests_share_partitions(
    start, length, size
):
    for a, b in split(start, start + length - 1, size)[1:-1]:
        assert a % size == 0
        assert (b + 1) % size == 0


def test_a_range_within_one_cell_stays_whole():
    assert split(3, 7, 10) == [(3, 7)]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_gaps_are_exactly_the_missing_blocks_between_first_and_last(blocks):
    found = gaps([Range(b, b) for b in blocks])
    missing = {n for hole in found for n in range(hole.start, hole.end + 1)}
    assert missing == set(range(min(blocks), max(blocks) + 1)) - blocks
