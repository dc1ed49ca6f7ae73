"""The content hash of rows does not depend on order, layout or storage form, but on every value."""

import hashlib
import io
import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.policy.commit.kept_rows import RowSet, keeps_all_rows
from trace_etl.proof.content_hash import hash_rows
from trace_etl.proof.row_encoding import UnknownType, describe_schema, encode_rows

pytestmark = pytest.mark.usefixtures("each_implementation")

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("small", pa.int32()),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
        ("amount", pa.decimal128(38, 2)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int64()), ("label", pa.string())])),
        ("attributes", pa.map_(pa.string(), pa.int64())),
        ("nested", pa.list_(pa.list_(pa.int64()))),
    ]
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_LONG = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.none() | _LONG,
            "small": st.none() | st.integers(-(2**31), 2**31 - 1),
            "flag": st.none() | st.booleans(),
            "ratio": st.none() | st.floats(),
            "amount": st.none() | st.decimals(-(10**30), 10**30, places=2),
            "name": st.none() | _TEXT,
            "raw": st.none() | st.binary(max_size=40),
            "day": st.none() | st.dates(date(1900, 1, 1), date(2100, 1, 1)),
            "at": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
            "tags": st.none() | st.lists(st.none() | _TEXT, max_size=3),
            "point": st.none()
            | st.fixed_dictionaries({"x": st.none() | _LONG, "label": st.none() | _TEXT}),
            "attributes": st.none() | st.dictionaries(_TEXT, st.none() | _LONG, max_size=3),
            "nested": st.none() | st.lists(st.none() | st.lists(_LONG, max_size=2), max_size=2),
        }
    ),
    max_size=6,
)


def make_table(rows: list[dict[str, Any]]) -> Any:
    prepared = [
        {**row, "attributes": None if row["attributes"] is None else [*row["attributes"].items()]}
        for row in rows
    ]
    return pa.Table.from_pylist(prepared, SCHEMA)


def encode_value(kind: Any, value: Any) -> tuple[bytes, bytes]:
    """The fixed part and the content of a value, written from the definition, one value at a time."""
    if pa.types.is_floating(kind):
        bits = b"\x7f\xf8" + bytes(6) if math.isnan(value) else struct.pack(">d", value)
        return bits, b""
    if pa.types.is_decimal(kind):
        with localcontext(prec=60):  # the default would round long numbers
            return int(value.scaleb(kind.scale)).to_bytes(16, "big", signed=True), b""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return int(value).to_bytes(8, "big", signed=True), b""
    if pa.types.is_date(kind):
        return (value - date(1970, 1, 1)).days.to_bytes(8, "big", signed=True), b""
    if pa.types.is_timestamp(kind):
        passed = value - datetime(1970, 1, 1, tzinfo=UTC)
        microseconds = (passed.days * 86_400 + passed.seconds) * 10**6 + passed.microseconds
        return microseconds.to_bytes(8, "big", signed=True), b""
    if pa.types.is_string(kind):
        content = value.encode()
    elif pa.types.is_binary(kind):
        content = value
    elif pa.types.is_struct(kind):
        content = encode_record([(f.name, f.type, value[f.name]) for f in kind])
    elif pa.types.is_map(kind):
        pairs = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        elements = [{"key": key, "value": item} for key, item in value]
        content = b"".join(encode_record([("", pairs, element)]) for element in elements)
    else:
        content = b"".join(encode_record([("", kind.value_type, item)]) for item in value)
    return len(content).to_bytes(8, "big"), content


def encode_record(fields: list[tuple[str, Any, Any]]) -> bytes:
    head, tail = b"", b""
    for _, kind, value in sorted(fields, key=lambda field: field[0].encode()):
        if value is None:
            width = 16 if pa.types.is_decimal(kind) else 8
            head += b"\x00" * (1 + width)
        else:
            fixed, content = encode_value(kind, value)
            head += b"\x01" + fixed
            tail += content
    return head + tail


@given(ROWS)
def test_the_encoding_of_rows_is_the_documented_one(rows: list[dict[str, Any]]) -> None:
    table = make_table(rows).combine_chunks()
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
    expected = [
        encode_record([(f.name, f.type, row[f.name]) for f in SCHEMA]) for row in table.to_pylist()
    ]
    assert encode_rows(batch).to_pylist() == expected
    digests = sorted(hashlib.sha256(row).digest() for row in expected)
    head = f"trace rows.v1\n{describe_schema(SCHEMA)}\n".encode() + len(rows).to_bytes(8, "big")
    content = hashlib.sha256(head + b"".join(digests)).hexdigest()
    assert hash_rows(SCHEMA, [batch]).content_hash == f"rows.v1:{content}"


@given(ROWS, st.randoms())
def test_order_layout_and_parquet_do_not_change_the_hash(
    rows: list[dict[str, Any]], random: Any
) -> None:
    table = make_table(rows)
    expected = hash_rows(SCHEMA, table.to_batches())
    shuffled = make_table(random.sample(rows, len(rows))).select(
        random.sample(SCHEMA.names, len(SCHEMA))
    )
    stored = io.BytesIO()
    pq.write_table(shuffled, stored, row_group_size=2, compression="zstd", store_schema=False)
    file = pq.ParquetFile(stored)
    assert hash_rows(file.schema_arrow, file.iter_batches(batch_size=3)) == expected
    assert (
        hash_rows(SCHEMA, table.slice(1).to_batches() + table.slice(0, 1).to_batches()) == expected
    )
    parts = [hash_rows(SCHEMA, table.slice(n, 1).to_batches()) for n in range(len(rows))]
    sums = [RowSet(part.row_sum, []) for part in parts]
    assert keeps_all_rows(RowSet(expected.row_sum, []), sums) == bool(rows)
    assert not keeps_all_rows(RowSet(expected.row_sum, []), sums[1:])


def test_every_value_type_and_name_changes_the_hash() -> None:
    def content(**columns: Any) -> str:
        table = pa.table(columns)
        return hash_rows(table.schema, table.to_batches()).content_hash

    variants = [
        content(a=pa.array([1, 2])),
        content(a=pa.array([1, 2, 2])),
        content(a=pa.array([1, None])),
        content(a=pa.array([0, 2])),
        content(b=pa.array([1, 2])),
        content(a=pa.array([1, 2], pa.int32())),
        content(a=pa.array([1.0, 2.0])),
        content(a=pa.array(["1", "2"])),
        content(a=pa.array([b"1", b"2"])),
        content(a=pa.array([b"", b"12"])),
        content(a=pa.array([b"", None])),
        content(a=pa.array([0.0])),
        content(a=pa.array([-0.0])),
        content(a=pa.array([math.nan])),
        content(a=pa.array([[1], [2]])),
        content(a=pa.array([[], [1, 2]])),
        content(a=pa.array([None, [1, 2]])),
        content(a=pa.array([[None], [1, 2]])),
        content(a=pa.array([], pa.int64())),
        content(a=pa.array([Decimal("1.00")], pa.decimal128(10, 2))),
        content(a=pa.array([Decimal("1.00")], pa.decimal128(12, 2))),
        content(a=pa.array([1]), b=pa.array([2])),
        content(a=pa.array([2]), b=pa.array([1])),
    ]
    assert len(set(variants)) == len(variants)


def test_storage_forms_of_a_value_have_one_hash() -> None:
    names = pa.array(["x", None, "zz"])
    forms = [
        names,
        names.cast(pa.large_string()),
        names.dictionary_encode(),
        pa.array(["-", "x", None, "zz"])[1:],
    ]
    hashes = {hash_rows(pa.schema([("n", f.type)]), [pa.record_batch([f], ["n"])]) for f in forms}
    assert len(hashes) == 1
    quiet = struct.unpack(">d", b"\x7f\xf8\x00\x00\x00\x00\x00\x01")[0]
    one, other = pa.table({"a": [math.nan]}), pa.table({"a": [quiet]})
    assert hash_rows(one.schema, one.to_batches()) == hash_rows(other.schema, other.to_batches())


def test_a_file_that_duckdb_writes_from_the_same_rows_has_the_same_hash(tmp_path: Any) -> None:
    rows = [
        dict.fromkeys(SCHEMA.names)
        | {"number": n, "raw": bytes([n]), "tags": ["a", None], "point": {"x": n, "label": "p"}}
        for n in range(50)
    ]
    table = make_table(rows)
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    pq.write_table(table, ours)
    duckdb.sql(f"COPY (SELECT * FROM '{ours}' ORDER BY number DESC) TO '{theirs}' (FORMAT parquet)")
    file = pq.ParquetFile(theirs)
    found = hash_rows(file.schema_arrow, file.iter_batches())
    assert found == hash_rows(table.schema, table.to_batches())


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.duration("s"), pa.uint64(), pa.null()])
def test_a_type_without_an_encoding_is_an_error(kind: Any) -> None:
    with pytest.raises(UnknownType):
        describe_schema(pa.schema([("a", kind)]))
