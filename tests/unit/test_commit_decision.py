"""Decisions about a new output whose scope, or a part of it, is already committed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.model.scope import Range
from trace_etl.policy.commit.commit_decision import CommitDecision, ExistingPartition, decide_commit


def existing(
    first: int, last: int, *, newer: bool = False, cured: bool = False
) -> ExistingPartition:
    return ExistingPartition(f"{first}-{last}", Range(first, last), newer, cured)


def decide(
    first: int, last: int, *committed: ExistingPartition, follows: bool = False
) -> CommitDecision:
    return decide_commit(f"{first}-{last}", Range(first, last), committed, follows=follows)


def test_an_output_of_an_empty_scope_is_committed() -> None:
    assert decide(0, 9) is CommitDecision.COMMIT
    assert decide_commit("all", None, []) is CommitDecision.COMMIT


@pytest.mark.parametrize("newer", [True, False])
def test_of_two_outputs_of_one_scope_the_newer_one_stays(newer: bool) -> None:
    expected = CommitDecision.SUPERSEDED if newer else CommitDecision.COMMIT
    assert decide(0, 9, existing(0, 9, newer=newer)) is expected
    assert decide_commit("all", None, [ExistingPartition("all", None, newer, False)]) is expected


def test_an_output_replaces_older_partitions_that_it_covers_completely() -> None:
    assert decide(0, 29, existing(0, 9), existing(20, 29)) is CommitDecision.COMMIT


def test_an_output_that_covers_a_newer_partition_runs_again() -> None:
    assert decide(0, 29, existing(0, 9), existing(20, 29, newer=True)) is CommitDecision.RUN_AGAIN


def test_an_output_that_covers_a_part_of_a_partition_is_refused() -> None:
    assert decide(5, 14, existing(0, 9)) is CommitDecision.OVERLAP
    assert decide(2, 3, existing(0, 9)) is CommitDecision.OVERLAP
    assert decide(0, 14, existing(10, 19, newer=True)) is CommitDecision.OVERLAP


def test_an_output_inside_a_newer_or_cured_partition_is_superseded() -> None:
    assert decide(2, 3, existing(0, 9, newer=True)) is CommitDecision.SUPERSEDED
    assert decide(2, 3, existing(0, 9, cured=True)) is CommitDecision.SUPERSEDED


def test_outputs_that_follow_a_cursor_can_be_committed_in_any_order() -> None:
    assert decide(0, 10, existing(0, 20), follows=True) is CommitDecision.SUPERSEDED
    assert (
        decide(5, 20, existing(5, 10), existing(11, 30), follows=True) is CommitDecision.SUPERSEDED
    )
    assert decide(0, 20, existing(0, 10, newer=True), follows=True) is CommitDecision.COMMIT
    assert decide(5, 20, existing(11, 30), follows=True) is CommitDecision.OVERLAP


spans = st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], sum(p)))


@given(spans, st.lists(spans, max_size=4), st.booleans(), st.booleans())
def test_a_newer_partition_is_never_replaced(
    new: tuple[int, int], candidates: list[tuple[int, int]], newer: bool, follows: bool
) -> None:
    committed: list[tuple[int, int]] = []  # committed partitions never overlap
    for span in candidates:
        committed += [span] if all(span[1] < s[0] or s[1] < span[0] for s in committed) else []
    overlapping = [s for s in committed if s[0] <= new[1] and new[0] <= s[1]]
    decision = decide(*new, *(existing(*s, newer=newer) for s in overlapping), follows=follows)
    if decision is CommitDecision.COMMIT and newer and not follows:
        assert overlapping == []
    if decision is CommitDecision.COMMIT:
        assert all(new[0] <= s[0] and s[1] <= new[1] for s in overlapping)
