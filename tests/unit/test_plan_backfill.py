"""Backfills are cut into chunks that fit what is there: every block once, no partition cut."""

from hypothesis import given
from hypothesis import strategies as st

from trace_etl.model.scope import Range
from trace_etl.policy.backfill import (
    Chunk,
    ExistingScope,
    choose_chunk_size,
    estimate_time_left,
    keeps_partitions,
    plan_chunks,
)


def shown(chunks: list[Chunk]) -> str:
    return " ".join(f"{c.action}:{c.span.key}" for c in chunks)


def there(*spans: str) -> list[ExistingScope]:
    return [ExistingScope(Range.parse(span), 7) for span in spans]


def plan(asked: str, size: int, *have: str, force: bool = False, feed: str | None = None) -> str:
    fed = None if feed is None else [Range.parse(f) for f in feed.split()]
    return shown(
        plan_chunks(Range.parse(asked), size, there(*have), fed, force=force, density=None)
    )


def test_chunks_end_at_multiples_of_their_size() -> None:
    assert plan("5-34", 10) == "build:5-9 build:10-19 build:20-29 build:30-34"


def test_what_is_there_is_left_alone_and_the_rest_is_cut_around_it() -> None:
    assert plan("0-39", 10, "15-24") == "build:0-9 build:10-14 there:15-24 build:25-29 build:30-39"


def test_by_force_partitions_are_rebuilt_whole_even_beyond_the_range() -> None:
    assert plan("5-24", 10, "0-9", "20-29", force=True) == "rebuild:0-9 build:10-19 rebuild:20-29"


def test_a_job_fed_by_partitions_takes_theirs_whole() -> None:
    assert plan("5-24", 3, feed="0-9 10-19 40-49") == "build:0-9 build:10-19 no_input:20-24"
    assert plan("5-24", 3, "0-9", feed="0-9 10-19") == "there:0-9 build:10-19 no_input:20-24"


def test_a_partition_that_covers_several_upstream_ones_stays_whole() -> None:
    assert plan("0-29", 3, "0-14", feed="0-9 10-19 20-29") == "there:0-14 build:15-19 build:20-29"


def test_rows_are_estimated_from_what_is_there() -> None:
    found = plan_chunks(Range(0, 19), 10, there("0-9"), None, force=False, density=2.5)
    assert [chunk.rows for chunk in found] == [7, 25]


def test_the_size_is_the_askers_then_the_splitters_then_the_commonest() -> None:
    assert choose_chunk_size(7, 100, [5], whole=99, relays=False) == 7
    assert choose_chunk_size(None, 100, [5], whole=99, relays=False) == 100
    assert choose_chunk_size(None, None, [5, 6, 6], whole=99, relays=False) == 6
    assert choose_chunk_size(None, None, [], whole=99, relays=False) == 1000
    assert choose_chunk_size(None, None, [], whole=99, relays=True) == 99


def test_relays_and_upserts_keep_no_partitions() -> None:
    assert keeps_partitions("cryo_ingest", "replace")
    assert not keeps_partitions("range_splitter", "replace")
    assert not keeps_partitions("sql", "append")


def test_time_left_is_told_once_something_is_done() -> None:
    assert estimate_time_left(0, 100, 10.0) == (0.0, None)
    assert estimate_time_left(50, 100, 10.0) == (5.0, 20.0)
    assert estimate_time_left(0, 0, 10.0) == (0.0, 0.0)


spans = st.lists(st.integers(1, 15), max_size=12).map(
    lambda lengths: [
        Range(sum(lengths[:n]), sum(lengths[: n + 1]) - 1) for n in range(0, len(lengths))
    ]
)


@given(
    st.integers(0, 80),
    st.integers(1, 60),
    st.integers(1, 20),
    spans,
    spans | st.none(),
    st.sets(st.integers(0, 11)),
    st.booleans(),
)
def test_every_block_asked_for_is_in_one_chunk_and_no_partition_is_cut(
    start: int,
    length: int,
    size: int,
    have: list[Range],
    feed: list[Range] | None,
    missing: set[int],
    force: bool,
) -> None:
    asked = Range(start, start + length - 1)
    have = [span for n, span in enumerate(have) if n not in missing]
    chunks = plan_chunks(
        asked, size, [ExistingScope(s, 1) for s in have], feed, force=force, density=None
    )
    blocks = [block for c in chunks for block in range(c.span.start, c.span.end + 1)]
    assert len(blocks) == len(set(blocks))
    assert set(range(asked.start, asked.end + 1)) <= set(blocks)
    for span in have:
        own = set(range(span.start, span.end + 1))
        for chunk in chunks:
            covered = set(range(chunk.span.start, chunk.span.end + 1))
            assert chunk.span == span or not own & covered
    for chunk in chunks:
        if feed is not None and chunk.action == "build":
            assert any(f.start <= chunk.span.start and chunk.span.end <= f.end for f in feed)
