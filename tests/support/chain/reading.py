"""Read the tables of a chain in this process."""

from typing import Any

from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.spark.evm.fetch import DEFAULT_RULES, RangeReader, RpcSource
from trace_etl.spark.evm.tables import build_table

ALL = ("blocks", "transactions", "logs")


def read_tables(
    *urls: str,
    tables: tuple[str, ...] = ALL,
    end: int = 29,
    rules: VerifyRules = DEFAULT_RULES,
    **how: Any,
) -> dict[str, Any]:
    """Return every table of blocks 0 to `end`, built as by the data source."""
    found: dict[str, list[Any]] = {table: [] for table in tables}
    with RangeReader(RpcSource(urls, **how), tables, rules) as reader:
        chain_id = reader.chain_id()
        for chunk in reader.chunks(0, end):
            for table in tables:
                found[table] += build_table(table, chunk, chain_id).to_pylist()
    return found
