"""Read a range of blocks in one Spark task, as rows of one table or as slices of several."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from trace_etl.dag.chain.tables import ColumnChoice
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.columns import parse_binary, parse_integers
from trace_etl.spark.evm.fetch import RangeReader
from trace_etl.spark.evm.finality import check_finality
from trace_etl.spark.evm.options import BUNDLE, LINKS, VERIFIED, EvmOptions
from trace_etl.spark.evm.tables import build_table
from trace_etl.spark.session.executors import freeze_imports

# A bundle carries several tables of one fetch. Each row is one table's rows of a few blocks, as
# Arrow IPC. It is compressed because the JVM copies every byte five times.
BUNDLE_SCHEMA: Any = pa.schema(
    [("table", pa.string()), ("first_block", pa.int64()), ("slice", pa.binary())]
)
_LINKS_SCHEMA: Any = pa.schema(
    [
        ("number", pa.int64()),
        ("hash", pa.binary()),
        ("parent", pa.binary()),
        ("time", pa.int64()),
    ]
)


@dataclass
class BlockRange(InputPartition):
    """The inclusive block range that one Spark task reads."""

    start: int
    end: int
    urls: tuple[str, ...] = ()
    """The endpoints in the order of the planner; empty for the order of the options."""


def read_range(options: EvmOptions, partition: InputPartition) -> Iterator[Any]:
    """Yield the record batches of a partition, in chain order."""
    assert isinstance(partition, BlockRange)
    columns = options.columns
    source = replace(options.source, urls=partition.urls or options.source.urls)
    # A job that may not read provisional blocks has already waited on the driver.
    is_provisional = options.finality == "provisional" and check_finality(
        source, partition.end, options.finality
    )
    with RangeReader(source, options.tables, options.rules, columns) as reader:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(partition.start, partition.end):
            if options.dataset == BUNDLE:
                yield _build_bundle(options.tables, chunk, chain_id, columns)
            else:
                yield build_table(options.dataset, chunk, chain_id, columns)
        if options.dataset == BUNDLE:
            verified = reader.verified(is_provisional=is_provisional).model_dump_json()
            yield _make_bundle([VERIFIED], [verified.encode()], partition.start)
    freeze_imports()


def unpack_slice(piece: Any) -> Any:
    """Return the record batch in a slice of a bundle."""
    return pa.ipc.open_stream(piece).read_next_batch()


def _pack_slice(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _build_bundle(
    tables: Sequence[str], chunk: BlockChunk, chain_id: int, columns: ColumnChoice
) -> Any:
    first = int(chunk.blocks.field("number")[0].as_py(), 16)
    slices = [_pack_slice(_build_slice(table, chunk, chain_id, columns)) for table in tables]
    return _make_bundle(tables, slices, first)


def _make_bundle(tables: Sequence[str], slices: Sequence[bytes], first: int) -> Any:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(tables), pa.string()),
            pa.array([first] * len(tables), pa.int64()),
            pa.array(slices, pa.binary()),
        ],
        schema=BUNDLE_SCHEMA,
    )


def _build_slice(table: str, chunk: BlockChunk, chain_id: int, choice: ColumnChoice) -> Any:
    if table != LINKS:
        return build_table(table, chunk, chain_id, choice)
    column = chunk.blocks.field
    columns = [
        parse_integers(column("number")),
        parse_binary(column("hash")),
        parse_binary(column("parentHash")),
        parse_integers(column("timestamp")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_LINKS_SCHEMA)
