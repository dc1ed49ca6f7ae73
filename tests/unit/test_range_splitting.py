"""Splitting block ranges, and finding the gaps between them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trace_etl.model.scope import Range
from trace_etl.policy.ranges import find_gaps, split_range

starts = st.integers(0, 10_000)
lengths = st.integers(1, 5_000)
sizes = st.integers(1, 700)


@given(starts, lengths, sizes)
def test_pieces_cover_the_range_without_a_gap_or_an_overlap(start, length, size):
    end = start + length - 1
    pieces = split_range(start, end, size)
    assert pieces[0][0] == start
    assert pieces[-1][1] == end
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(pieces))
    assert all(b - a + 1 <= size for a, b in pieces)


@given(starts, lengths, sizes)
def test_inner_pieces_start_and_end_at_multiples_of_the_size(start, length, size):
    for a, b in split_range(start, start + length - 1, size)[1:-1]:
        assert a % size == 0
        assert (b + 1) % size == 0


def test_a_range_inside_one_partition_is_not_split():
    assert split_range(3, 7, 10) == [(3, 7)]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_gaps_are_exactly_the_missing_blocks_between_first_and_last(blocks):
    gaps = find_gaps([Range(b, b) for b in blocks])
    missing = {n for gap in gaps for n in range(gap.start, gap.end + 1)}
    assert missing == set(range(min(blocks), max(blocks) + 1)) - blocks
