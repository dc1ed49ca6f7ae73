"""`spark.read.format("evm")`: the driver plans block ranges, executors fetch them into Arrow.

    spark.dataSource.register(EvmDataSource)
    spark.read.format("evm").option("rpc_url", "http://127.0.0.1:8545").option("dataset", "logs")
        .option("start", 0).option("end", 999).load()

Options: `rpc_url` (several separated by spaces), `dataset`, `start` and `end` (inclusive), and
optionally `partition_size`, `batch`, `concurrency`, `timeout` (seconds), `tries`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from trace_etl.pipeline.evm.fetch import RangeReader
from trace_etl.pipeline.evm.options import BUNDLE, EvmOptions
from trace_etl.pipeline.evm.tables import SCHEMAS, Chunk, build
from trace_etl.pipeline.executors import settle
from trace_etl.plan.ranges import split

_DDL = {
    "int64": "bigint",
    "binary": "binary",
    "string": "string",
    "double": "double",
    "bool": "boolean",
}

# Several tables from one fetch: each row is one table's slice of a few blocks, as Arrow IPC,
# compressed because every byte is copied five times on its way through the JVM.
BUNDLE_SCHEMA: Any = pa.schema(
    [("table", pa.string()), ("first_block", pa.int64()), ("slice", pa.binary())]
)


def ddl(schema: Any) -> str:
    """Spark's words for an Arrow schema of ours."""
    return ", ".join(f"`{field.name}` {_DDL[str(field.type)]}" for field in schema)


@dataclass
class BlockRange(InputPartition):
    """What one Spark task reads."""

    start: int
    end: int


class EvmDataSource(DataSource):
    """A chain's blocks, transactions or logs over JSON-RPC."""

    @classmethod
    def name(cls) -> str:
        return "evm"

    def schema(self) -> str:
        options = EvmOptions.parse(self.options)
        settle()
        return ddl(BUNDLE_SCHEMA if options.dataset == BUNDLE else SCHEMAS[options.dataset])

    def reader(self, schema: StructType) -> DataSourceReader:
        return EvmReader(EvmOptions.parse(self.options))


class EvmReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: EvmOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[BlockRange]:
        options = self._options
        cuts = split(options.start, options.end, options.partition_size)
        settle()
        return [BlockRange(start, end) for start, end in cuts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, BlockRange)
        options = self._options
        with RangeReader(options.source, options.tables) as reader:
            chain_id = reader.chain_id()
            for chunk in reader.chunks(partition.start, partition.end):
                if options.dataset == BUNDLE:
                    yield _bundle(options.tables, chunk, chain_id)
                else:
                    yield build(options.dataset, chunk, chain_id)
        settle()


def unpack(piece: Any) -> Any:
    """The record batch in a slice."""
    return pa.ipc.open_stream(piece).read_next_batch()


def _pack(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _bundle(tables: Sequence[str], chunk: Chunk, chain_id: int) -> Any:
    first = int(chunk.blocks.field("number")[0].as_py(), 16)
    slices = [_pack(build(table, chunk, chain_id)) for table in tables]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(tables), pa.string()),
            pa.array([first] * len(tables), pa.int64()),
            pa.array(slices, pa.binary()),
        ],
        schema=BUNDLE_SCHEMA,
    )
