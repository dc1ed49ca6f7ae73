"""Column names: what is allowed in an output, and how a name is written for Spark."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from trace_etl.dag.column_types import MAX_TABLE_NAME_BYTES
from trace_etl.spark.errors import BadColumn

BatchWork = Callable[[Iterator[Any]], Iterator[Any]]
_MAX_LENGTH = 255


def quote_name(name: str) -> str:
    """Write a column name so that Spark reads dots and backticks as parts of it."""
    return "`" + name.replace("`", "``") + "`"


def map_batches(frame: DataFrame, work: BatchWork, schema: StructType) -> DataFrame:
    """Call `mapInArrow`, also if a name has a backtick, which PySpark cannot resolve."""
    names = frame.columns
    if not any("`" in name for name in names):
        return frame.mapInArrow(work, schema)
    numbered = frame.toDF(*(f"column_{number}" for number in range(len(names))))
    return numbered.mapInArrow(_Renamed(work, tuple(names)), schema)


@dataclass(frozen=True)
class _Renamed:
    """Runs on an executor: restores the column names of each batch."""

    work: BatchWork
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        names = list(self.names)
        return self.work(pa.RecordBatch.from_arrays(b.columns, names=names) for b in batches)


def check_names(output: str, schema: StructType, *, is_table: bool = False) -> None:
    """Check the column names of an output, including nested names. Raises BadColumn.

    `is_table` is for outputs in Postgres, which allows shorter names.
    """
    for number, field in enumerate(schema.fields, start=1):
        for name in (field.name, *_list_nested_names(field.dataType)):
            if problem := _find_problem(name):
                raise BadColumn(f"output {output}, column {number} ({name[:80]!r}): {problem}")
        size = len(field.name.encode())
        if is_table and size > MAX_TABLE_NAME_BYTES:
            raise BadColumn(
                f"output {output}, column {number} ({field.name[:80]!r}): the name has {size} "
                f"bytes, but Postgres allows {MAX_TABLE_NAME_BYTES}; give it a shorter alias"
            )


def _find_problem(name: str) -> str | None:
    if not name:
        return "the name is empty; give it an alias"
    if not name.isprintable():
        return "the name has a control character; give it an alias without it"
    if len(name) > _MAX_LENGTH:
        return f"the name has more than {_MAX_LENGTH} characters; give it a shorter alias"
    return None


def _list_nested_names(kind: DataType) -> Iterator[str]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield field.name
            yield from _list_nested_names(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _list_nested_names(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _list_nested_names(kind.keyType)
        yield from _list_nested_names(kind.valueType)
