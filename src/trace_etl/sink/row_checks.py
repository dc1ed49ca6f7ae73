"""Check a parsed table against the declared columns, whole columns at a time."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from trace_etl.api.task.buffers import BufferBatch, BufferColumn
from trace_etl.dag.column_types import parse_type
from trace_etl.data.columns import full_arrow_type
from trace_etl.sink.errors import BadBatch

ORG = "org_id"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # the years 1 to 9999, in days since 1970
_DAY = 86_400_000_000  # microseconds
_compute: Any = pc  # the functions of pyarrow.compute have no types


def check_rows(table: Any, batch: BufferBatch) -> Any:
    """Return the declared columns in their types. Raises BadBatch, which names the line and the column."""
    _check_names(table, batch)
    _check_org(table, batch)
    arrays = [
        _check_column(table, column, is_key=column.name in batch.unique_key)
        for column in batch.columns or ()
        if column.name != ORG
    ]
    names = [column.name for column in batch.columns or () if column.name != ORG]
    return pa.table(arrays, names=names)


def _check_names(table: Any, batch: BufferBatch) -> None:
    names: list[str] = table.schema.names
    declared = {column.name for column in batch.columns or ()} | {ORG}
    for name in names:
        if names.count(name) > 1:
            raise BadBatch(f"line 1: {name!r} occurs twice; send each column once")
        if name not in declared:
            raise BadBatch(
                f"line 1: the schema has no column {name!r}; leave it out, or declare it"
            )


def _check_org(table: Any, batch: BufferBatch) -> None:
    """Refuse rows of another organisation. Rows need no `org_id`: the platform sets it."""
    if ORG not in table.schema.names:
        return
    values = table.column(ORG)
    if values.null_count == len(values):
        return
    if not kinds.is_string(values.type) and not kinds.is_large_string(values.type):
        raise BadBatch("line 1: 'org_id' must be string; leave it out, the platform sets it")
    _refuse(
        _compute.not_equal(values, str(batch.org_id)),
        "'org_id' is another organisation's; leave it out, the platform sets it",
    )


def _check_column(table: Any, column: BufferColumn, *, is_key: bool) -> Any:
    declared = parse_type(column.type)
    if declared is None:
        raise BadBatch(f"{column.name!r}: there is no column type {column.type}")
    kind = full_arrow_type(declared)
    if column.name not in table.schema.names:
        values: Any = pa.chunked_array([pa.nulls(table.num_rows, kind)])
    else:
        values = _cast(table.column(column.name), kind, column)
    if not column.nullable or is_key:
        rule = (
            f"{column.name!r} is missing or null, which the schema does not allow; give it a value"
        )
        _refuse(values.is_null(), rule)
    _check_values(values, column, is_key=is_key)
    return values


def _check_values(
    values: Any, column: BufferColumn, *, is_key: bool, lines: Any | None = None
) -> None:
    """Refuse values that Postgres cannot store, or that readers cannot tell apart.

    `lines` are the rows of the elements of an array.
    """
    kind = values.type
    if kinds.is_floating(kind) and is_key:  # two NaNs differ in Python, but are equal in Postgres
        rule = f"{column.name!r} is NaN, but it is part of the unique_key; leave out the row"
        _refuse(_compute.is_nan(values), rule, lines)
    if kinds.is_string(kind):
        rule = f"{column.name!r} has a NUL, which Postgres cannot store; remove it"
        _refuse(_compute.match_substring(values, "\x00"), rule, lines)
    if kinds.is_date32(kind) or kinds.is_timestamp(kind):
        numbers = values.cast(pa.int32() if kinds.is_date32(kind) else pa.int64())
        first, last = _FIRST_DAY, _LAST_DAY
        if kinds.is_timestamp(kind):
            first, last = first * _DAY, (last + 1) * _DAY - 1
        outside = _compute.or_(_compute.less(numbers, first), _compute.greater(numbers, last))
        _refuse(outside, f"{column.name!r} is outside the years 1 to 9999", lines)
    if kinds.is_list(kind):
        flat = _compute.list_flatten(values)
        parents = _compute.list_parent_indices(values.combine_chunks())
        _check_values(flat, column, is_key=False, lines=parents)


def _cast(values: Any, kind: Any, column: BufferColumn) -> Any:
    """Cast to the declared type, if no value can change. Raises BadBatch."""
    if values.type == kind:
        return values
    if kinds.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not kinds.is_null(values.type) and not _can_hold(kind, values.type):
        raise BadBatch(f"line 1: {column.name!r} must be {column.type}, not {values.type}")
    try:
        return values.cast(kind)
    except pa.ArrowException:
        row = _find_bad_row(values, kind)
        raise BadBatch(
            f"line {row + 1}: {column.name!r} must be {column.type}, not {str(values[row])[:80]}"
        ) from None


def _can_hold(kind: Any, given: Any) -> bool:
    """Whether the types are of one family. A value that does not fit is found by the cast."""
    if kinds.is_list(kind):
        is_list = kinds.is_list(given) or kinds.is_large_list(given)
        return is_list and _can_hold(kind.value_type, given.value_type)
    families = (
        (kinds.is_integer,),
        (kinds.is_floating,),
        (kinds.is_boolean,),
        (kinds.is_string, kinds.is_large_string),
        (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary),
        (kinds.is_date,),
        (kinds.is_decimal,),
    )
    if kinds.is_timestamp(kind):
        return kinds.is_timestamp(given) and given.tz is not None
    return any(
        any(test(kind) for test in family) and any(test(given) for test in family)
        for family in families
    )


def _find_bad_row(values: Any, kind: Any) -> int:
    """Return the first row that cannot be cast."""
    first, count = 0, len(values)
    while count > 1:
        half = count // 2
        try:
            values.slice(first, half).cast(kind)
            first, count = first + half, count - half
        except pa.ArrowException:
            count = half
    return first


def _refuse(mask: Any, rule: str, lines: Any | None = None) -> None:
    """Raise BadBatch with the first line for which the mask is true."""
    row = _compute.index(mask, True).as_py()
    if row >= 0:
        line = row if lines is None else lines[row].as_py()
        raise BadBatch(f"line {line + 1}: {rule}")
