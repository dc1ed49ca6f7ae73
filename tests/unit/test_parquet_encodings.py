"""Archive columns get the encoding that makes them smallest and that every reader supports."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trace_etl.objects.file_store import FileStore
from trace_etl.spark.io.encodings import choose_encodings
from trace_etl.spark.io.parquet import open_parquet_file

ROWS = 30_000


def _rows() -> Any:
    random = np.random.default_rng(1)
    hashes = [random.bytes(32) for _ in range(ROWS // 3)]
    tokens = [bytes([n]) * 20 for n in range(50)]
    return pa.table(
        {
            "block_number": np.arange(ROWS) // 25,
            "gas_price": random.integers(10**9, 10**10, ROWS),
            "transaction_hash": pa.array([hashes[n // 3] for n in range(ROWS)], pa.binary()),
            "address": pa.array([tokens[n] for n in random.integers(0, 50, ROWS)], pa.binary()),
            "value_string": [str(n) for n in random.integers(0, 10**18, ROWS)],
            "value_f64": random.random(ROWS),
            "success": random.integers(0, 2, ROWS) == 1,
            "nested": pa.array([[{"a": n % 3}] for n in range(ROWS)]),
        }
    )


def write_file(path: Path, rows: Any, *, is_archive: bool) -> Path:
    with open_parquet_file(
        FileStore(path.parent), path.name, rows.schema, is_archive=is_archive
    ) as file:
        for batch in rows.to_batches():
            file.write(batch)
        file.finish()
    return path


def test_every_column_gets_its_best_encoding() -> None:
    encodings = choose_encodings(_rows(), level=6)
    assert "address" in encodings.dictionary and "nested.list.element.a" in encodings.dictionary
    assert encodings.others["block_number"] == "DELTA_BINARY_PACKED"
    assert encodings.others["transaction_hash"] == "DELTA_BYTE_ARRAY"
    assert "gas_price" not in encodings.dictionary and "value_string" not in encodings.dictionary


def test_an_archive_is_smaller_and_holds_the_same_rows_for_every_reader(tmp_path: Path) -> None:
    rows = _rows()
    usual = write_file(tmp_path / "usual.parquet", rows, is_archive=False)
    archive = write_file(tmp_path / "archive.parquet", rows, is_archive=True)
    everywhere = tmp_path / "dictionaries.parquet"
    pq.write_table(rows, everywhere, compression="zstd", compression_level=6)
    assert archive.stat().st_size < everywhere.stat().st_size
    assert archive.stat().st_size < usual.stat().st_size
    assert pq.read_table(archive).equals(rows.cast(pq.read_schema(archive)))
    same = duckdb.sql(
        f"SELECT count(*) FROM (FROM '{archive}' EXCEPT ALL FROM '{usual}')"
    ).fetchall()
    assert same == [(0,)]


@pytest.mark.parametrize("count", [0, 1])
def test_an_archive_with_very_few_rows_is_a_valid_file(tmp_path: Path, count: int) -> None:
    rows = _rows().slice(0, count)
    stored = pq.read_table(write_file(tmp_path / "few.parquet", rows, is_archive=True))
    assert stored.num_rows == count and stored.schema.names == rows.schema.names


def test_files_have_field_ids_page_indexes_sort_order_and_dictionaries(tmp_path: Path) -> None:
    rows = _rows()
    store = FileStore(tmp_path)
    for name, columns in (("a", rows.column_names), ("b", ["address", "block_number"])):
        part = rows.select(columns)
        with open_parquet_file(
            store, f"{name}.parquet", part.schema, sorted_by=["block_number"]
        ) as file:
            for batch in part.to_batches():
                file.write(batch)
            file.finish()
    first, second = (pq.ParquetFile(tmp_path / f"{name}.parquet") for name in "ab")

    def field_ids(file: Any) -> dict[str, bytes]:
        return {f.name: f.metadata[b"PARQUET:field_id"] for f in file.schema_arrow}

    ids = field_ids(first)
    assert len(set(ids.values())) == len(rows.column_names)
    # A column has the same id whichever other columns a file has, and in whatever order.
    assert field_ids(second).items() <= ids.items()
    assert ids["block_number"] == b"1597917663", "table formats may already use this id"
    group = first.metadata.row_group(0)
    assert [c.column_index for c in group.sorting_columns] == [0]
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert all(column.has_offset_index and column.has_column_index for column in columns.values())
    assert "RLE_DICTIONARY" in columns["address"].encodings
    # Statistics, indexes or filters of the file must not hide matching rows from a reader.
    token = "'" + "\\x01" * 20 + "'::BLOB"
    found = duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/a.parquet' WHERE address = {token}")
    assert found.fetchall() == [(rows["address"].to_pylist().count(b"\x01" * 20),)]


@pytest.mark.parametrize("is_archive", [False, True])
@pytest.mark.parametrize("column", ["address", "topic0"])
def test_a_query_for_an_absent_value_reads_the_dictionary_only(
    tmp_path: Path, column: str, is_archive: bool
) -> None:
    """Statistics do not exclude the value, and there is no Bloom filter."""
    random = np.random.default_rng(2)
    values = [random.bytes(20) for _ in range(400)]
    rows = pa.table(
        {
            "block_number": np.arange(100_000) // 150,
            column: pa.array([values[n] for n in random.integers(0, 400, 100_000)], pa.binary()),
        }
    )
    rows = pa.concat_tables([rows, rows])  # two row groups
    absent = sorted(values)[200][:19] + b"\x00"
    plain = tmp_path / "plain.parquet"
    pq.write_table(rows, plain, use_dictionary=False, compression="zstd", row_group_size=100_000)
    ours = write_file(tmp_path / "ours.parquet", rows, is_archive=is_archive)
    sizes = {file: _count_bytes_read(file, column, absent) for file in (plain, ours)}
    assert 10 * sizes[ours] < sizes[plain], sizes


def _count_bytes_read(file: Path, column: str, value: bytes) -> int:
    literal = "".join(f"\\x{byte:02X}" for byte in value)
    query = f"SELECT count(*), max(block_number) FROM '{file}' WHERE {column} = '{literal}'::BLOB"
    with duckdb.connect() as connection:
        connection.execute("SELECT 1").fetchall()
        before = _read_counter()
        assert connection.execute(query).fetchall() == [(0, None)]
        return _read_counter() - before


def _read_counter() -> int:
    """Bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])
