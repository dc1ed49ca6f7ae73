"""Load tables of Postgres data as inputs. Postgres applies the scope of the task and the filter of the edge.

Spark could push the filters of a query as well, but all reads of one frame share the filters that were
pushed last, so a self-join would lose rows.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, cast

from pyspark.sql import Column, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    StringType,
    StructType,
)

from trace_etl.api.task.payload import Scope, TaskInput
from trace_etl.dag.column_types import RESERVED
from trace_etl.data import hot_tables, table_reader
from trace_etl.data.buffers import CURSOR
from trace_etl.data.columns import arrow_schema
from trace_etl.data.connection import connect
from trace_etl.data.table_reader import Condition
from trace_etl.model.storage import hot_table
from trace_etl.spark.errors import NothingCommitted, report_errors
from trace_etl.spark.io.inputs import Input, where_columns
from trace_etl.spark.session.executors import freeze_imports

_BLOCK = "block_number"
_SMALL_ROWS = 100_000


def load(spark: SparkSession, task_input: TaskInput, scope: Scope | None, dsn: str | None) -> Input:
    """Load the rows of a table that are in the task's scope. Raises InputMissing or BadTask."""
    table = hot_table(task_input.dataset_uuid, task_input.dataset_version)
    listed = _list_columns(dsn, table) if dsn is not None else []
    if dsn is None or not listed:
        raise NothingCommitted(f"input {task_input.name}: no partition is committed yet")
    columns = from_arrow_schema(arrow_schema(listed), prefer_timestamp_ntz=True)
    limits = _make_limits(scope, columns.names)
    conditions = _make_conditions(task_input, columns)
    spark.dataSource.register(_make_source(dsn, columns, (*limits, *conditions.values())))
    frame = spark.read.format("hot").option("table", table).load()
    others = {
        name: value for name, value in (task_input.where or {}).items() if name not in conditions
    }
    if others:
        rest = where_columns(task_input.model_copy(update={"where": others}), columns)
        frame = frame.where(reduce(Column.__and__, rest))
    if CURSOR in frame.columns:
        frame = frame.drop(*RESERVED)
    is_small = not table_reader.has_more_rows(dsn, table, limits, than=_SMALL_ROWS)
    return Input(task_input.name, frame, is_small)


def _list_columns(dsn: str, table: str) -> list[tuple[str, str]]:
    with connect(dsn) as conn:
        return hot_tables.list_columns(conn, table)


def _make_limits(scope: Scope | None, columns: Sequence[str]) -> list[Condition]:
    """Restrict rows to the task's scope: a range of blocks, or what is new since the last task.

    The cursor of a buffered dataset counts its batches; the cursor of others counts blocks.
    """
    if scope is None:
        return []
    cursor = CURSOR if CURSOR in columns else _BLOCK
    limits = (
        (_BLOCK, ">=", scope.start),
        (_BLOCK, "<=", scope.end),
        (cursor, ">", scope.after),
        (cursor, "<=", scope.cursor),
    )
    return [
        Condition(column, operator, value)
        for column, operator, value in limits
        if value is not None and column in columns
    ]


def _make_conditions(task_input: TaskInput, columns: StructType) -> dict[str, Condition]:
    """Return the part of the edge's `where` that Postgres compares exactly as Spark does, by column."""
    found: dict[str, Condition] = {}
    for name, value in (task_input.where or {}).items():
        if name not in columns.names:
            continue
        given = cast("list[Any]", value if isinstance(value, list) else [value])
        values = [_convert_value(item, columns[name].dataType) for item in given]
        if values and None not in values:
            found[name] = Condition(name, "IN", tuple(values))
    return found


def _convert_value(item: Any, kind: DataType) -> Any:
    """Return the value for Postgres; None if its type is not that of the column."""
    if isinstance(kind, BinaryType) and isinstance(item, str) and item.startswith("0x"):
        try:
            return bytes.fromhex(item[2:])
        except ValueError:  # `where_columns` raises BadTask for it
            return None
    if isinstance(item, bool):
        return item if isinstance(kind, BooleanType) else None
    is_same = (isinstance(kind, IntegralType) and isinstance(item, int)) or (
        isinstance(kind, StringType) and isinstance(item, str)
    )
    return item if is_same else None


def _make_source(
    address: str, listed: StructType, chosen: tuple[Condition, ...]
) -> type[DataSource]:
    """Make the data source of one read.

    The address has a password, so it is not an option: Spark shows options in plans and logs.
    """

    class ConnectedHotTable(HotTable):
        dsn, columns, conditions = address, listed, chosen

    return ConnectedHotTable


class HotTable(DataSource):
    """A Spark data source that reads one table of Postgres data."""

    dsn: str
    columns: StructType
    conditions: tuple[Condition, ...]

    @classmethod
    def name(cls) -> str:
        return "hot"

    def schema(self) -> StructType:
        return self.columns

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = to_arrow_schema(schema, timezone="UTC")
        return HotTableReader(self.dsn, self.options["table"], columns, self.conditions)


class HotTableReader(DataSourceReader):
    """Reads in one statement: during a reorganisation, two statements would see two states."""

    def __init__(self, dsn: str, table: str, columns: Any, conditions: Sequence[Condition]) -> None:
        self._dsn, self._table, self._columns = dsn, table, columns
        self._conditions = conditions

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    @report_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from table_reader.read_batches(
            self._dsn, self._table, self._columns, self._conditions
        )
        freeze_imports()
