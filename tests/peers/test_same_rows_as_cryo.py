"""cryo and Trace read the same chain: every field of every row is equal."""

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.chain import cryo
from support.spark.spark_tasks import directory, ingest
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.evm.tables import SCHEMAS
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

LENGTH = 200
TABLES = ("blocks", "transactions", "logs")


@pytest.fixture(scope="module")
def theirs(rpc_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("cryo") / "out"
    cryo.freeze(TABLES, LENGTH, rpc_url, out, chunk=75)
    return {table: read_sorted(out.glob(f"*__{table}__*.parquet")) for table in TABLES}


@pytest.fixture(scope="module")
def ours(rpc_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    root = tmp_path_factory.mktemp("objects")
    settings = SparkSettings(
        FileStore(root), tmp_path_factory.mktemp("spark"), rpc_pools={"default": (rpc_url,)}
    )
    runner = SparkRunner(settings)
    try:
        tasks = [ingest(start, min(start + 74, LENGTH - 1)) for start in range(0, LENGTH, 75)]
        for one in tasks:
            runner.run(one)
    finally:
        runner.close()
    yield {
        table: read_sorted(
            f for one in tasks for f in directory(root, one, table).glob("*.parquet")
        )
        for table in TABLES
    }


def read_sorted(files: Any) -> Any:
    """Concatenate all rows of some files in the order of the chain."""
    table = pa.concat_tables([pq.read_table(file) for file in sorted(files)])
    keys = ("block_number", "transaction_index", "log_index")
    return table.sort_by([(name, "ascending") for name in keys if name in table.column_names])


@pytest.mark.parametrize("table", TABLES)
def test_every_field_equals_the_field_of_cryo(
    ours: dict[str, Any], theirs: dict[str, Any], table: str
) -> None:
    mine, other = ours[table], theirs[table]
    assert mine.num_rows == other.num_rows > 0
    assert set(other.column_names) <= set(mine.column_names)
    for name in other.column_names:
        wanted = SCHEMAS[table].field(name).type
        assert mine[name].combine_chunks().equals(other[name].cast(wanted).combine_chunks()), (
            f"{table}.{name}"
        )
