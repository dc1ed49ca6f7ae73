"""What becomes of an output where something stands already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.model.scope import Range
from trace_etl.policy.commit_decision import ExistingPartition, Verdict, verdict


def existing(
    first: int, last: int, *, newer: bool = False, cured: bool = False
) -> ExistingPartition:
    return ExistingPartition(f"{first}-{last}", Range(first, last), newer, cured)


def of(first: int, last: int, *there: ExistingPartition, follows: bool = False) -> Verdict:
    return verdict(f"{first}-{last}", Range(first, last), there, follows=follows)


def test_where_nothing_stands_it_is_shown() -> None:
    assert of(0, 9) is Verdict.POINT
    assert verdict("all", None, []) is Verdict.POINT


@pytest.mark.parametrize("newer", [True, False])
def test_of_two_readings_of_one_scope_the_newer_one_stays(newer: bool) -> None:
    expected = Verdict.SUPERSEDED if newer else Verdict.POINT
    assert of(0, 9, existing(0, 9, newer=newer)) is expected
    assert verdict("all", None, [ExistingPartition("all", None, newer, False)]) is expected


def test_what_covers_older_ones_whole_takes_their_place() -> None:
    assert of(0, 29, existing(0, 9), existing(20, 29)) is Verdict.POINT


def test_what_covers_a_newer_one_is_read_again() -> None:
    assert of(0, 29, existing(0, 9), existing(20, 29, newer=True)) is Verdict.AGAIN


def test_what_cuts_through_is_refused() -> None:
    assert of(5, 14, existing(0, 9)) is Verdict.OVERLAP
    assert of(2, 3, existing(0, 9)) is Verdict.OVERLAP
    assert of(0, 14, existing(10, 19, newer=True)) is Verdict.OVERLAP


def test_within_what_is_newer_or_knows_of_the_change_nothing_is_to_be_done() -> None:
    assert of(2, 3, existing(0, 9, newer=True)) is Verdict.SUPERSEDED
    assert of(2, 3, existing(0, 9, cured=True)) is Verdict.SUPERSEDED


def test_updates_up_to_a_cursor_may_come_in_any_order() -> None:
    assert of(0, 10, existing(0, 20), follows=True) is Verdict.SUPERSEDED
    assert of(5, 20, existing(5, 10), existing(11, 30), follows=True) is Verdict.SUPERSEDED
    assert of(0, 20, existing(0, 10, newer=True), follows=True) is Verdict.POINT
    assert of(5, 20, existing(11, 30), follows=True) is Verdict.OVERLAP


spans = st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], sum(p)))


@given(spans, st.lists(spans, max_size=4), st.booleans(), st.booleans())
def test_nothing_newer_ever_goes(
    new: tuple[int, int], there: list[tuple[int, int]], newer: bool, follows: bool
) -> None:
    apart: list[tuple[int, int]] = []  # what stands never overlaps
    for span in there:
        apart += [span] if all(span[1] < s[0] or s[1] < span[0] for s in apart) else []
    overlapping = [s for s in apart if s[0] <= new[1] and new[0] <= s[1]]
    found = of(*new, *(existing(*s, newer=newer) for s in overlapping), follows=follows)
    if found is Verdict.POINT and newer and not follows:
        assert overlapping == []
    if found is Verdict.POINT:
        assert all(new[0] <= s[0] and s[1] <= new[1] for s in overlapping)
