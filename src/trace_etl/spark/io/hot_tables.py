"""Load tables of Postgres data as inputs, through a Spark data source that pushes filters to SQL."""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from trace_etl.api.task.payload import Scope, TaskInput
from trace_etl.dag.buffered_datasets import RESERVED
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
_PUSHED_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "IN",
}
_PUSHED_TYPES = (int, str, float, bool, bytes, bytearray)


def load(spark: SparkSession, task_input: TaskInput, scope: Scope | None, dsn: str | None) -> Input:
    """Load the rows of a table that are in the task's scope. Raises InputMissing or BadTask."""
    table = hot_table(task_input.dataset_uuid, task_input.dataset_version)
    if dsn is None or not _list_columns(dsn, table):
        raise NothingCommitted(f"input {task_input.name}: no partition is committed yet")
    spark.dataSource.register(_make_source(dsn))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = spark.read.format("hot").option("table", table).load()
    limits = _make_limits(scope, frame.columns)
    conditions = [_to_column(limit) for limit in limits] + where_columns(task_input, frame.schema)
    if conditions:
        frame = frame.where(reduce(Column.__and__, conditions))
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


def _to_column(limit: Condition) -> Column:
    column = F.col(limit.column)
    return {">": column > limit.value, ">=": column >= limit.value, "<=": column <= limit.value}[
        limit.operator
    ]


def _make_source(address: str) -> type[DataSource]:
    """Make the data source of one database.

    The address has a password, so it is not an option: Spark shows options in plans and logs.
    """

    class ConnectedHotTable(HotTable):
        dsn = address

    return ConnectedHotTable


class HotTable(DataSource):
    """A Spark data source that reads one table of Postgres data."""

    dsn: str

    @classmethod
    def name(cls) -> str:
        return "hot"

    @report_errors
    def schema(self) -> StructType:
        columns = _list_columns(self.dsn, self.options["table"])
        freeze_imports()
        return from_arrow_schema(arrow_schema(columns), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = to_arrow_schema(schema, timezone="UTC")
        return HotTableReader(self.dsn, self.options["table"], columns)


class HotTableReader(DataSourceReader):
    """Reads in one statement: during a reorganisation, two statements would see two states."""

    def __init__(self, dsn: str, table: str, columns: Any) -> None:
        self._dsn, self._table, self._columns = dsn, table, columns
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for pushed in filters:
            condition = _to_condition(pushed)
            if condition is None:
                yield pushed
            else:
                self._conditions.append(condition)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    @report_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from table_reader.read_batches(
            self._dsn, self._table, self._columns, self._conditions
        )
        freeze_imports()


def _to_condition(pushed: Filter) -> Condition | None:
    """Return the condition of a filter; None if Spark must apply the filter itself."""
    operator = _PUSHED_OPERATORS.get(type(pushed))
    if isinstance(pushed, IsNotNull) and len(pushed.attribute) == 1:
        return Condition(pushed.attribute[0], table_reader.IS_NOT_NULL, None)
    attribute, value = getattr(pushed, "attribute", ()), getattr(pushed, "value", None)
    values = value if operator == "IN" else (value,)
    if operator is None or len(attribute) != 1 or not values:
        return None
    if not all(isinstance(item, _PUSHED_TYPES) for item in values):
        return None
    return Condition(attribute[0], operator, value)
