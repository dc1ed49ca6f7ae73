"""Arrow data is encoded as binary COPY and read back field by field as by Postgres."""

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.data.copy_encoding import encode_rows

_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("hash", pa.binary()),
        ("note", pa.string()),
        ("share", pa.float64()),
        ("good", pa.bool_()),
    ]
)
_ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.binary(max_size=40),
        st.none() | st.text(max_size=10),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.booleans(),
    ),
    max_size=12,
)


def _batch(values: list[tuple[Any, ...]]) -> Any:
    """A slice of a longer batch, so that offsets and validity bits do not start at zero."""
    first, nulls, last = (1, b"x", "y", 1.0, True), (None,) * 5, (2, b"zz", "", 0.0, False)
    padded = [first, nulls, nulls, *values, last]
    columns = [pa.array([row[at] for row in padded], kind.type) for at, kind in enumerate(_SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA).slice(3, len(values))


def decode_copy(data: memoryview) -> list[tuple[Any, ...]]:
    readers = (
        lambda field: struct.unpack(">q", field)[0],
        bytes,
        lambda field: bytes(field).decode(),
        lambda field: struct.unpack(">d", field)[0],
        lambda field: {b"\0": False, b"\1": True}[bytes(field)],
    )
    rows: list[tuple[Any, ...]] = []
    at = 0
    while at < len(data):
        assert struct.unpack_from(">h", data, at)[0] == len(readers)
        at += 2
        row: list[Any] = []
        for read in readers:
            [length] = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if length < 0 else read(data[at : at + length]))
            at += max(length, 0)
        rows.append(tuple(row))
    return rows


@given(_ROWS)
def test_every_value_survives_the_encoding(values: list[tuple[Any, ...]]) -> None:
    assert decode_copy(encode_rows(_batch(values))) == values


def test_bytes_behind_a_null_are_not_encoded() -> None:
    values = pa.array([b"abc", b"defg", b"h"], pa.binary())
    validity = pa.py_buffer(bytes([0b101]))
    column = pa.Array.from_buffers(pa.binary(), 3, [validity, *values.buffers()[1:]])
    batch = pa.RecordBatch.from_arrays([column], names=["hash"])
    field_count = struct.pack(">h", 1)
    assert bytes(encode_rows(batch)) == b"".join(
        [
            *(field_count, struct.pack(">i", 3), b"abc"),
            *(field_count, struct.pack(">i", -1)),
            *(field_count, struct.pack(">i", 1), b"h"),
        ]
    )


def test_an_unsupported_type_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.uint32())], names=["small"])
    with pytest.raises(TypeError, match="uint32"):
        encode_rows(batch)
