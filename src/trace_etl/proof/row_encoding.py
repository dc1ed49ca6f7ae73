"""Encode rows as bytes that depend on nothing but column names, column types and values.

A *record* is a row, a struct, or an element of a list (a record of one field). Its fields are sorted
by the UTF-8 bytes of their names. The encoding of a record has two parts:

1. For each field one byte, 0 for null or 1, and the *fixed part* of its value; zeros for null.
2. For each field whose length varies, its content.

| type | fixed part | content |
| --- | --- | --- |
| boolean, integers, date (days), timestamp (microseconds) | 8 bytes, two's complement | |
| float, double | 4, 8 bytes, IEEE 754; every NaN is the same quiet NaN, -0.0 is not 0.0 | |
| decimal | 16 bytes, two's complement of the unscaled value | |
| string, binary | length of the content, 8 bytes | UTF-8, or the bytes |
| struct | length of the content, 8 bytes | its record |
| list, map | length of the content, 8 bytes | its elements as records; a map has structs of `key` and `value` |

All numbers are big-endian. Changing anything here changes every hash: use a new `SCHEME` then.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

_Array = Any
_Type = Any
_NAN = {4: b"\x7f\xc0\x00\x00", 8: b"\x7f\xf8\x00\x00\x00\x00\x00\x00"}
_INTEGERS = {"int8": "byte", "int16": "short", "int32": "int", "int64": "long"}
_UNSIGNED = {"uint8": "short", "uint16": "int", "uint32": "long"}


class UnknownType(TypeError):
    """A column has a type that the encoding does not define."""


def describe_schema(schema: Any) -> str:
    """Return the columns as one line each, sorted by name: the type, a space, the name."""
    lines = [f"{describe_type(field.type)} {field.name}" for field in _sort_fields(schema)]
    return "".join(f"{line}\n" for line in lines)


def encode_rows(batch: Any) -> _Array:
    """Return the encoding of each row of a record batch as a binary array. Raises UnknownType."""
    return join_parts(encode_parts(batch))


def encode_parts(batch: Any) -> list[_Array]:
    """Return binary arrays whose values, joined row by row, are the encoding. Raises UnknownType."""
    fields = _sort_fields(batch.schema)
    return _encode_records([batch.column(batch.schema.get_field_index(f.name)) for f in fields])


def join_parts(parts: Sequence[_Array]) -> _Array:
    """Concatenate the values of each row."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def describe_type(kind: _Type) -> str:
    """Return the name of a type: the same for every form in which Arrow stores its values."""
    if kinds.is_dictionary(kind):
        return describe_type(kind.value_type)
    if name := (_INTEGERS | _UNSIGNED).get(str(kind)):
        return name
    for is_kind, describe in _DESCRIPTIONS:
        if is_kind(kind):
            return describe(kind)
    raise UnknownType(f"a column of type {kind} has no content hash")


def _sort_fields(fields: Any) -> list[Any]:
    ordered = sorted(fields, key=lambda field: field.name.encode())
    for before, after in itertools.pairwise(ordered):
        if before.name == after.name:
            raise UnknownType(f"two columns have the name {before.name!r}")
    return ordered


def _describe_struct(kind: _Type) -> str:
    fields = _sort_fields([kind.field(n) for n in range(kind.num_fields)])
    inner = ",".join(f"{field.name.encode().hex()}:{describe_type(field.type)}" for field in fields)
    return f"struct<{inner}>"


def _is_list(kind: _Type) -> bool:
    return kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)


def _is_string(kind: _Type) -> bool:
    return kinds.is_string(kind) or kinds.is_large_string(kind) or str(kind) == "string_view"


def _is_binary(kind: _Type) -> bool:
    is_plain = kinds.is_binary(kind) or kinds.is_large_binary(kind) or str(kind) == "binary_view"
    return is_plain or kinds.is_fixed_size_binary(kind)


def _is_decimal(kind: _Type) -> bool:
    return kinds.is_decimal(kind) and kind.precision <= 38


_DESCRIPTIONS: Sequence[tuple[Callable[[_Type], bool], Callable[[_Type], str]]] = (
    (kinds.is_boolean, lambda _: "boolean"),
    (kinds.is_float32, lambda _: "float"),
    (kinds.is_float64, lambda _: "double"),
    (_is_decimal, lambda kind: f"decimal({kind.precision},{kind.scale})"),
    (_is_string, lambda _: "string"),
    (_is_binary, lambda _: "binary"),
    (kinds.is_date, lambda _: "date"),
    (kinds.is_timestamp, lambda kind: "timestamp" if kind.tz else "timestamp_ntz"),
    (kinds.is_struct, _describe_struct),
    (_is_list, lambda kind: f"list<{describe_type(kind.value_type)}>"),
    (kinds.is_map, lambda kind: f"map<{describe_type(kind.key_type)},{describe_type(kind.item_type)}>"),
)  # fmt: skip


def _encode_records(columns: Sequence[_Array]) -> list[_Array]:
    """Encode records whose fields are given in order, as parts. Needs at least one field."""
    fixed: list[tuple[Any, Any]] = []
    contents: list[_Array] = []
    for column in columns:
        validity = np.asarray(column.is_valid(), np.bool_) if column.null_count else None
        value, content = _encode_column(_unify(column))
        if validity is not None:
            value = np.where(validity[:, None], value, np.uint8(0))
        fixed.append((validity, value))
        contents += [] if content is None else [content]
    width = sum(1 + value.shape[1] for _, value in fixed)
    rows = np.empty((len(columns[0]), width), np.uint8)
    at = 0
    for validity, value in fixed:
        rows[:, at] = 1 if validity is None else validity
        rows[:, at + 1 : at + 1 + value.shape[1]] = value
        at += 1 + value.shape[1]
    return [_make_binary(np.arange(len(rows) + 1, dtype=np.int64) * width, rows), *contents]


def _unify(column: _Array) -> _Array:
    """Bring the forms in which Arrow stores the values of a type to one of them."""
    kind = column.type
    if kinds.is_dictionary(kind):
        return _unify(column.dictionary_decode())
    if isinstance(column, pa.ExtensionArray):
        return _unify(column.storage)
    if _is_string(kind) or _is_binary(kind):
        return column.cast(pa.binary()).cast(pa.large_binary())
    if kinds.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())  # raises for nanoseconds
    if kinds.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    if kinds.is_decimal(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if kinds.is_fixed_size_list(kind):
        return column.cast(pa.list_(kind.value_type))
    return column


def _encode_column(column: _Array) -> tuple[Any, _Array | None]:
    """Return the fixed part of each value, without regard to nulls, and the contents."""
    kind = column.type
    if kinds.is_decimal(kind):
        return _read_decimals(column), None
    if kinds.is_floating(kind):
        return _read_floats(column, kind.bit_width // 8), None
    if kinds.is_integer(kind) or kinds.is_boolean(kind):
        zero = pa.scalar(False) if kinds.is_boolean(kind) else pa.scalar(0, kind)
        numbers = (column.fill_null(zero) if column.null_count else column).to_numpy(
            zero_copy_only=False
        )
        return _convert_to_bytes(numbers.astype(">i8")), None
    content = _encode_content(column)
    offsets = _read_offsets(content)
    return _convert_to_bytes(np.diff(offsets).astype(">i8")), content


def _encode_content(column: _Array) -> _Array:
    """Return the contents of a column whose length varies; empty for null."""
    kind = column.type
    if kinds.is_struct(kind):
        fields = _sort_fields([kind.field(n) for n in range(kind.num_fields)])
        if not fields:
            return pa.array([b""] * len(column), pa.large_binary())
        # `flatten` gives the children the nulls of their struct and the slice of the array.
        children = dict(
            zip((kind.field(n).name for n in range(kind.num_fields)), column.flatten(), strict=True)
        )
        records = join_parts(_encode_records([children[field.name] for field in fields]))
        return _drop_null_lists(records, column)
    if kinds.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        return _join_elements(column, entries)
    if _is_list(kind):
        return _join_elements(column, column.values)
    return column.fill_null(b"") if column.null_count else column


def _join_elements(column: _Array, elements: _Array) -> _Array:
    """Concatenate the records of each list: they follow each other, so only offsets change."""
    # A null list may have elements in its slot: take the lists without them.
    if column.null_count:
        empty = pa.array([[]], column.type)
        filled = pc.if_else(column.is_valid(), column, empty[0])
        return _encode_content(filled)
    first, last = (column.offsets[0].as_py(), column.offsets[len(column)].as_py())
    records = join_parts(_encode_records([elements.slice(first, last - first)]))
    starts = np.asarray(column.offsets).astype(np.int64) - first
    offsets = _read_offsets(records)
    return _make_binary(offsets[starts], _read_bytes(records))


def _drop_null_lists(contents: _Array, column: _Array) -> _Array:
    if not column.null_count:
        return contents
    return pc.if_else(column.is_valid(), contents, pa.scalar(b"", pa.large_binary()))


def _read_decimals(column: _Array) -> Any:
    data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    start = 16 * column.offset
    return data[start : start + 16 * len(column)].reshape(-1, 16)[:, ::-1]


def _read_floats(column: _Array, width: int) -> Any:
    numbers = column.fill_null(0.0) if column.null_count else column
    values = numbers.to_numpy(zero_copy_only=False)
    rows = _convert_to_bytes(values.astype(f">f{width}"))
    if (is_nan := np.isnan(values)).any():
        rows = rows.copy()
        rows[is_nan] = np.frombuffer(_NAN[width], np.uint8)
    return rows


def _convert_to_bytes(values: Any) -> Any:
    return values.view(np.uint8).reshape(len(values), values.itemsize)


def _read_offsets(array: _Array) -> Any:
    """The offsets of a large binary array from its first byte on."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
    return offsets - offsets[0]


def _read_bytes(array: _Array) -> Any:
    """The bytes of a large binary array without those before its first value."""
    if len(array) == 0:
        return np.zeros(0, np.uint8)
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]


def _make_binary(offsets: Any, content: Any) -> _Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
