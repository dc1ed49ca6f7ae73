"""Read Parquet files that Spark's JVM cannot reach: Python workers read them into Arrow.

Spark reads S3 only with jars from Maven. Python workers have the client that also writes the files,
with its settings and credentials, so that an installation from PyPI is enough.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from trace_etl.spark.errors import report_errors
from trace_etl.spark.io.scan import Scan
from trace_etl.spark.session.executors import freeze_imports


def read_objects(spark: SparkSession, schema: StructType, scan: Scan) -> DataFrame:
    """Return the rows of a scan, one Spark partition per file."""
    source = _make_source(scan.name, schema, scan)
    spark.dataSource.register(source)
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
    """Skips row groups that the limits of the scan exclude.

    It does not take filters of Spark: all reads of one frame share the filters that were pushed last,
    so a self-join would lose rows.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(key) for key in self._scan.keys]

    @report_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self._scan.only(partition.value).batches()
        freeze_imports()
