"""Hexadecimal columns are compared with values computed by Python."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.spark.evm.columns import (
    count_bytes,
    parse_binary,
    parse_integers,
    parse_wide_integers,
    take_nth,
)

pytestmark = pytest.mark.usefixtures("each_implementation")

maybe_bytes = st.lists(st.none() | st.binary(max_size=40), max_size=30)
maybe_numbers = st.lists(st.none() | st.integers(0, 2**63 - 1), max_size=30)


def _texts(values: list[str | None]) -> pa.StringArray:
    """Return a slice of a longer array, so that offsets do not start at zero."""
    return pa.array(["0xdead", None, *values, "0xbeef"], pa.string())[2:-1]


@given(maybe_bytes)
def test_bytes_of_any_length_are_converted(values: list[bytes | None]) -> None:
    texts = _texts([None if value is None else f"0x{value.hex()}" for value in values])
    assert parse_binary(texts, optional=True).to_pylist() == values


@given(st.lists(st.binary(min_size=20, max_size=20), max_size=30))
def test_bytes_of_a_fixed_length_are_converted(values: list[bytes]) -> None:
    assert parse_binary(_texts([f"0x{value.hex()}" for value in values])).to_pylist() == values


@given(maybe_numbers)
def test_quantities_are_converted(values: list[int | None]) -> None:
    texts = _texts([None if value is None else hex(value) for value in values])
    assert parse_integers(texts, optional=True).to_pylist() == values


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 60)), max_size=8))
def test_repeated_quantities_are_converted(runs: list[tuple[int, int]]) -> None:
    values = [value for value, times in runs for _ in range(times)]
    assert parse_integers(_texts([hex(value) for value in values])).to_pylist() == values


@given(st.lists(st.integers(0, 2**256 - 1) | st.integers(0, 2**65), max_size=20))
def test_wide_quantities_are_converted_to_three_forms(values: list[int]) -> None:
    as_bytes, as_text, as_double = parse_wide_integers(_texts([hex(value) for value in values]))
    assert as_bytes.to_pylist() == [value.to_bytes(32, "big") for value in values]
    assert as_text.to_pylist() == [str(value) for value in values]
    assert as_double.to_pylist() == [float(value) for value in values]


@given(st.lists(st.binary(max_size=12), max_size=20))
def test_bytes_and_zero_bytes_are_counted(values: list[bytes]) -> None:
    column = parse_binary(_texts([f"0x{value.hex()}" for value in values]))
    n_bytes, n_zero = count_bytes(column)
    assert n_bytes.to_pylist() == [len(value) for value in values]
    assert n_zero.to_pylist() == [value.count(0) for value in values]


@given(st.lists(st.lists(st.text("ab", max_size=3), max_size=4), max_size=12), st.integers(0, 3))
def test_the_nth_item_of_each_list_is_taken_or_null(values: list[list[str]], index: int) -> None:
    lists = pa.array([["x"], *values], pa.list_(pa.string()))[1:]
    expected = [value[index] if index < len(value) else None for value in values]
    assert take_nth(lists, index).to_pylist() == expected


@pytest.mark.parametrize("text", ["0xabc", "0xzz", "abcd", "x0ab", "", "0", "0x0g", "1xab"])
def test_invalid_hexadecimal_bytes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_binary(pa.array(["0xab", text]))


@pytest.mark.parametrize("text", ["0xzz", "12", "x", "", "0x", "0x-1", "0x 1"])
def test_an_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_integers(pa.array(["0x1", text]))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 2**255])
def test_a_quantity_that_overflows_a_long_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        parse_integers(pa.array(["0x1", hex(number)]))


def test_a_missing_value_is_refused_in_a_required_column() -> None:
    texts = pa.array(["0x01", None])
    for convert in (parse_binary, parse_integers, parse_wide_integers):
        with pytest.raises(ValueError, match="missing"):
            convert(texts)
