"""A backfill is split into chunks: every block is in one chunk, no existing partition is split."""

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


def format_chunks(chunks: list[Chunk]) -> str:
    return " ".join(f"{c.action}:{c.span.key}" for c in chunks)


def existing(*spans: str) -> list[ExistingScope]:
    return [ExistingScope(Range.parse(span), 7) for span in spans]


def plan(
    requested: str, size: int, *built: str, force: bool = False, inputs: str | None = None
) -> str:
    input_spans = None if inputs is None else [Range.parse(text) for text in inputs.split()]
    return format_chunks(
        plan_chunks(
            Range.parse(requested), size, existing(*built), input_spans, force=force, density=None
        )
    )


def test_chunks_end_at_multiples_of_their_size() -> None:
    assert plan("5-34", 10) == "build:5-9 build:10-19 build:20-29 build:30-34"


def test_existing_partitions_are_skipped_and_the_rest_is_split_around_them() -> None:
    assert plan("0-39", 10, "15-24") == "build:0-9 build:10-14 there:15-24 build:25-29 build:30-39"


def test_with_force_partitions_are_rebuilt_completely_even_beyond_the_range() -> None:
    assert plan("5-24", 10, "0-9", "20-29", force=True) == "rebuild:0-9 build:10-19 rebuild:20-29"


def test_a_job_that_reads_partitions_gets_one_chunk_per_input_partition() -> None:
    assert plan("5-24", 3, inputs="0-9 10-19 40-49") == "build:0-9 build:10-19 no_input:20-24"
    assert plan("5-24", 3, "0-9", inputs="0-9 10-19") == "there:0-9 build:10-19 no_input:20-24"


def test_a_partition_that_covers_several_input_partitions_is_not_split() -> None:
    assert plan("0-29", 3, "0-14", inputs="0-9 10-19 20-29") == "there:0-14 build:15-19 build:20-29"


def test_row_counts_are_estimated_from_existing_partitions() -> None:
    chunks = plan_chunks(Range(0, 19), 10, existing("0-9"), None, force=False, density=2.5)
    assert [chunk.rows for chunk in chunks] == [7, 25]


def test_the_chunk_size_is_the_requested_then_the_upstream_then_the_most_frequent_size() -> None:
    assert choose_chunk_size(7, 100, [5], range_length=99, is_forwarder=False) == 7
    assert choose_chunk_size(None, 100, [5], range_length=99, is_forwarder=False) == 100
    assert choose_chunk_size(None, None, [5, 6, 6], range_length=99, is_forwarder=False) == 6
    assert choose_chunk_size(None, None, [], range_length=99, is_forwarder=False) == 1000
    assert choose_chunk_size(None, None, [], range_length=99, is_forwarder=True) == 99


def test_forwarding_and_appending_jobs_keep_no_partitions() -> None:
    assert keeps_partitions("cryo_ingest", "replace")
    assert not keeps_partitions("range_splitter", "replace")
    assert not keeps_partitions("sql", "append")


def test_the_time_left_is_unknown_until_a_block_is_done() -> None:
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
def test_every_requested_block_is_in_one_chunk_and_no_partition_is_split(
    start: int,
    length: int,
    size: int,
    built: list[Range],
    inputs: list[Range] | None,
    missing: set[int],
    force: bool,
) -> None:
    requested = Range(start, start + length - 1)
    built = [span for n, span in enumerate(built) if n not in missing]
    chunks = plan_chunks(
        requested, size, [ExistingScope(s, 1) for s in built], inputs, force=force, density=None
    )
    blocks = [block for c in chunks for block in range(c.span.start, c.span.end + 1)]
    assert len(blocks) == len(set(blocks))
    assert set(range(requested.start, requested.end + 1)) <= set(blocks)
    for span in built:
        expected = set(range(span.start, span.end + 1))
        for chunk in chunks:
            covered = set(range(chunk.span.start, chunk.span.end + 1))
            assert chunk.span == span or not expected & covered
    for chunk in chunks:
        if inputs is not None and chunk.action == "build":
            assert any(f.start <= chunk.span.start and chunk.span.end <= f.end for f in inputs)


def test_only_jobs_that_publish_partitions_keep_them() -> None:
    assert keeps_partitions("sql", "replace") and not keeps_partitions("sql", "append")
    assert not keeps_partitions("range_splitter", "replace")
    assert not keeps_partitions("hot_trim", "replace")  # it only deletes rows
