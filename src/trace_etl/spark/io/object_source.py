"""Read Parquet files that Spark's JVM cannot reach: Python workers read them into Arrow.

Spark reads S3 only with jars from Maven. Python workers have the client that also writes the files,
with its settings and credentials, so that an installation from PyPI is enough.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from trace_etl.spark.errors import report_errors
from trace_etl.spark.io.scan import Limit, Scan
from trace_etl.spark.session.executors import freeze_imports

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


def read_objects(spark: SparkSession, schema: StructType, scan: Scan) -> DataFrame:
    """Return the rows of a scan, one Spark partition per file."""
    source = _make_source(f"objects_{uuid4().hex}", schema, scan)
    spark.dataSource.register(source)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return spark.read.format(source.name()).load()


def _make_source(source_name: str, columns: StructType, scan: Scan) -> type[DataSource]:
    """Make a data source of its own for one scan: keys as options would fill plans and logs."""

    class Objects(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return ObjectReader(scan)

    return Objects


class ObjectReader(DataSourceReader):
    """Skips row groups by filters on integers. Spark applies all filters again."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for pushed in filters:
            limit = _to_limit(pushed, self._scan.schema)
            if limit is not None:
                self._scan = self._scan.limit(limit)
            yield pushed

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(key) for key in self._scan.keys]

    @report_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self._scan.only(partition.value).batches()
        freeze_imports()


def _to_limit(pushed: Filter, schema: Any) -> Limit | None:
    """Return the limit of a filter. None for other types: Spark and Arrow compare them differently."""
    operator = _OPERATORS.get(type(pushed))
    attribute = cast("tuple[str, ...]", getattr(pushed, "attribute", ()))
    value = cast("Any", getattr(pushed, "value", None))
    if operator is None or len(attribute) != 1 or attribute[0] not in schema.names:
        return None
    values: list[Any] = list(value) if operator == "in" else [value]
    are_integers = all(isinstance(item, int) and not isinstance(item, bool) for item in values)
    if not are_integers or not pa.types.is_integer(schema.field(attribute[0]).type):
        return None
    return Limit(attribute[0], operator, values if operator == "in" else value)
