"""Read blocks again from a chain and hash the rows that a partition should have."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.dag.chain.tables import CHAIN_TABLES, list_columns
from trace_etl.proof.content_hash import ContentHash, hash_rows
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table, make_schema


def find_table(columns: Sequence[str]) -> str | None:
    """Return the table of a chain with all these columns; None if there is none."""
    known = {table: {column.name for column in list_columns(table)} for table in CHAIN_TABLES}
    fitting = [table for table, names in known.items() if set(columns) <= names]
    return min(fitting, key=lambda table: len(known[table]), default=None)


def hash_chain_rows(
    url: str, table: str, columns: Sequence[str], start: int, end: int, rules: VerifyRules
) -> ContentHash:
    """Read and verify a range of blocks, and hash its rows. Raises the errors of the reader."""
    choice, schema = tuple(columns), make_schema(table, tuple(columns))
    fields = [field for field in schema if field.name in choice]
    names = [field.name for field in fields]

    def read(reader: RangeReader) -> Iterator[Any]:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(start, end):
            yield build_table(table, chunk, chain_id, choice).select(names)

    with RangeReader(RpcSource((url,)), (table,), rules, choice) as reader:
        return hash_rows(pa.schema(fields), read(reader))
