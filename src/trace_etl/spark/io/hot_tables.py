"""Hot tables as inputs: a Spark data source over Postgres data, filters pushed down to SQL."""

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
from trace_etl.data import hot_reading
from trace_etl.data.buffers import CURSOR
from trace_etl.data.columns import arrow_schema
from trace_etl.data.hot_reading import Condition
from trace_etl.model.storage import hot_table
from trace_etl.spark.errors import InputMissing
from trace_etl.spark.io.inputs import Input, where_columns
from trace_etl.spark.session.executors import freeze_imports

_BLOCK = "block_number"
_SMALL_ROWS = 100_000
_PUSHED: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "IN",
}
_PLAIN = (int, str, float, bool, bytes, bytearray)


def load(spark: SparkSession, given: TaskInput, scope: Scope | None, dsn: str | None) -> Input:
    """The rows of a hot table that a task is about. Raises InputMissing or BadTask."""
    table = hot_table(given.dataset_uuid, given.dataset_version)
    if dsn is None or not hot_reading.shape(dsn, table):
        raise InputMissing(f"input {given.name}: no partition is committed yet")
    spark.dataSource.register(_source(dsn))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = spark.read.format("hot").option("table", table).load()
    limits = _limits(scope, frame.columns)
    conditions = [_column(one) for one in limits] + where_columns(given, frame.schema)
    if conditions:
        frame = frame.where(reduce(Column.__and__, conditions))
    if CURSOR in frame.columns:
        frame = frame.drop(*RESERVED)
    is_small = not hot_reading.is_longer_than(dsn, table, limits, _SMALL_ROWS)
    return Input(given.name, frame, is_small)


def _limits(scope: Scope | None, columns: Sequence[str]) -> list[Condition]:
    """What a task is about: a range of blocks, or what is new since the last one.

    The cursor of a buffered dataset counts its batches; that of others, blocks.
    """
    if scope is None:
        return []
    counted = CURSOR if CURSOR in columns else _BLOCK
    told = (
        (_BLOCK, ">=", scope.start),
        (_BLOCK, "<=", scope.end),
        (counted, ">", scope.after),
        (counted, "<=", scope.cursor),
    )
    return [
        Condition(column, operator, value)
        for column, operator, value in told
        if value is not None and column in columns
    ]


def _column(one: Condition) -> Column:
    column = F.col(one.column)
    return {
        ">": column > one.value,
        ">=": column >= one.value,
        "<=": column <= one.value,
    }[one.operator]


def _source(address: str) -> type[DataSource]:
    """The tables of one database. Its address holds a password, and Spark shows options to all."""

    class Reached(HotTable):
        dsn = address

    return Reached


class HotTable(DataSource):
    """One hot table."""

    dsn: str

    @classmethod
    def name(cls) -> str:
        return "hot"

    def schema(self) -> StructType:
        columns = hot_reading.shape(self.dsn, self.options["table"])
        freeze_imports()
        return from_arrow_schema(arrow_schema(columns), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = to_arrow_schema(schema, timezone="UTC")
        return HotReader(self.dsn, self.options["table"], columns)


class HotReader(DataSourceReader):
    """Reads in one statement: two would see two states while a reorganisation goes through."""

    def __init__(self, dsn: str, table: str, columns: Any) -> None:
        self._dsn, self._table, self._columns = dsn, table, columns
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            condition = _condition(one)
            if condition is None:
                yield one
            else:
                self._conditions.append(condition)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from hot_reading.batches(self._dsn, self._table, self._columns, self._conditions)
        freeze_imports()


def _condition(one: Filter) -> Condition | None:
    operator = _PUSHED.get(type(one))
    if isinstance(one, IsNotNull) and len(one.attribute) == 1:
        return Condition(one.attribute[0], hot_reading.IS_NOT_NULL, None)
    attribute, value = getattr(one, "attribute", ()), getattr(one, "value", None)
    values = value if operator == "IN" else (value,)
    if operator is None or len(attribute) != 1 or not values:
        return None
    if not all(isinstance(each, _PLAIN) for each in values):
        return None
    return Condition(attribute[0], operator, value)
