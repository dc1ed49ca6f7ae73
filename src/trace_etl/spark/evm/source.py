"""The data source `evm`: the driver plans block ranges, executors fetch them as Arrow.

    spark.dataSource.register(EvmDataSource)
    spark.read.format("evm").option("rpc_url", "http://127.0.0.1:8545").option("dataset", "logs")
        .option("start", 0).option("end", 999).load()

Options: `rpc_url` (several separated by spaces), `dataset`, `start` and `end` (inclusive), and
optionally `columns`, `finality`, `partition_size`, `batch`, `concurrency`, `timeout` (seconds), `tries`.
`spark.readStream` takes no `end`; `blocks_per_batch` and `reorg_depth` are optional.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from trace_etl.dag.column_types import BY_ARROW
from trace_etl.policy.ranges import split_range
from trace_etl.spark.errors import BadTask, report_errors
from trace_etl.spark.evm.finality import check_finality
from trace_etl.spark.evm.options import BUNDLE, EvmOptions
from trace_etl.spark.evm.reading import BUNDLE_SCHEMA, BlockRange, read_range, unpack_slice
from trace_etl.spark.evm.stream import EvmStreamReader
from trace_etl.spark.evm.tables import make_schema
from trace_etl.spark.session.executors import freeze_imports

__all__ = ["EvmDataSource", "EvmReader", "ddl", "unpack_slice"]


def ddl(schema: Any) -> str:
    """Return the Spark DDL of an Arrow schema of this package."""
    return ", ".join(f"`{field.name}` {BY_ARROW[str(field.type)].spark}" for field in schema)


class EvmDataSource(DataSource):
    """Reads blocks, transactions, logs, traces, withdrawals or uncles of a chain over JSON-RPC."""

    @classmethod
    def name(cls) -> str:
        return "evm"

    @report_errors
    def schema(self) -> str:
        options = EvmOptions.parse(self.options)
        freeze_imports()
        return ddl(
            BUNDLE_SCHEMA
            if options.dataset == BUNDLE
            else make_schema(options.dataset, options.columns)
        )

    @report_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return EvmReader(EvmOptions.parse(self.options))

    @report_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EvmStreamReader(EvmOptions.parse(self.options))


class EvmReader(DataSourceReader):
    """Plans partitions on the driver and reads them on executors."""

    def __init__(self, options: EvmOptions) -> None:
        self._options = options

    @report_errors
    def partitions(self) -> Sequence[BlockRange]:
        options = self._options
        if options.end is None:
            raise BadTask("evm option end: is missing")
        check_finality(options.source, options.end, options.finality)
        ranges = split_range(options.start, options.end, options.partition_size)
        freeze_imports()
        return [BlockRange(start, end) for start, end in ranges]

    @report_errors
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_range(self._options, partition)
