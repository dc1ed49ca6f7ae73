"""DuckDB reads pinned objects of S3 through signed URLs, and nothing else."""

import asyncio
import io
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.duckdb_corpus import HARMLESS, HOSTILE, fill_in
from support.ministack import AwsKey, Ministack, make_options
from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.objects.s3_store import S3Store
from trace_etl.query.processes.pool import open_pool
from trace_etl.query.requests import DatasetView, QueryLimits
from trace_etl.query.sql.engine import open_engine, prepare_engine
from trace_etl.query.sql.sql_guard import SqlGuard
from trace_etl.query.sql.tables import ReadBudget

LIMITS = QueryLimits(100, "100MB", threads=1, reads_urls=True)
SECRET = "root:secret"
LIFE = timedelta(minutes=5)


@pytest.fixture(scope="module")
def key(aws: Ministack) -> AwsKey:
    return aws.make_user({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})


@pytest.fixture(scope="module")
def store(aws: Ministack, key: AwsKey, tmp_path_factory: pytest.TempPathFactory) -> S3Store:
    """A store with a dataset `blocks` and a secret."""
    store = S3Store(aws.make_bucket(), "", make_options(aws, key, tmp_path_factory.mktemp("key")))
    numbers = pa.array(range(20), pa.int64())
    hashes = pa.array([bytes([n]) for n in range(20)])
    for name, table in (
        ("b", pa.table({"block_number": numbers, "hash": hashes})),
        ("secret", pa.table({"secret": [SECRET]})),
    ):
        content = io.BytesIO()
        pq.write_table(table, content)
        store.put(f"{store.bucket}/{name}.parquet", content.getvalue())
    store.put(f"{store.bucket}/secret.txt", SECRET.encode())
    return store


def sign(store: S3Store, name: str) -> str:
    return store.read_urls([f"{store.bucket}/{name}"], life=LIFE)[0]


@pytest.fixture
def views(store: S3Store) -> list[DatasetView]:
    return [DatasetView("blocks", [sign(store, "b.parquet")], [])]


def test_both_walls_let_every_harmless_select_pass(views: list[DatasetView]) -> None:
    guard = SqlGuard()
    with open_engine(LIMITS) as engine:
        prepare_engine(engine, views, None, ReadBudget(0))
        for text in HARMLESS:
            assert {table.name for table in guard.check(text)} <= {"blocks"}, text
            engine.execute(text).fetchall()


def test_the_engine_alone_stops_every_hostile_select(
    store: S3Store, views: list[DatasetView], key: AwsKey, tmp_path: Path
) -> None:
    """The SQL guard is off. Statements name objects by every address that they have."""
    (tmp_path / "secret.txt").write_text(SECRET)
    texts = list(fill_in(HOSTILE, Path(views[0].files[0]), tmp_path))
    endpoint = f"{store.options.endpoint}/{store.bucket}/"
    for name in ("secret.parquet", "secret.txt"):
        places = [f"s3://{store.bucket}/{name}", endpoint + name, sign(store, name)]
        places += [views[0].files[0].replace("b.parquet", name), f"{endpoint}../{name}"]
        readers = ("read_text", "read_blob", "read_parquet", "glob", "parquet_metadata")
        texts += [f"SELECT * FROM {reader}('{place}')" for reader in readers for place in places]
    with open_engine(LIMITS) as engine:
        prepare_engine(engine, views, None, ReadBudget(0))
        refused = 0
        for text in texts:
            if not _is_select(text):
                continue
            try:
                rows = repr(engine.execute(text).fetchall())
            except duckdb.Error:
                refused += 1
                continue
            assert not any(it in rows for it in (SECRET, "root:x:", key.secret_key)), text
        assert refused > 200
        for change in ("SET s3_endpoint = 'x'", "SET http_proxy = 'x'", "SET ca_cert_file = ''"):
            with pytest.raises(duckdb.Error, match="locked"):
                engine.execute(change)


def _is_select(text: str) -> bool:
    try:
        (statement,) = duckdb.extract_statements(text)
    except (duckdb.Error, ValueError):
        return False
    return statement.type == duckdb.StatementType.SELECT and "_scan" not in text


def test_the_sql_guard_hides_signed_urls(views: list[DatasetView]) -> None:
    guard = SqlGuard()
    for text in (
        "FROM duckdb_secrets()",
        "SELECT sql FROM duckdb_views()",
        "SELECT current_setting('allowed_paths')",
        "FROM duckdb_settings()",
        "EXPLAIN FROM blocks",
        "SELECT * FROM which_secret('s3://x', 's3')",
        "FROM duckdb_logs",
        "LOAD httpfs",
        "SELECT * FROM read_parquet('" + views[0].files[0] + "')",
    ):
        try:
            tables = {table.name for table in guard.check(text)}
        except TraceError:
            continue
        assert tables != {"blocks"}  # the Query Service refuses a name that is not a dataset


def test_an_object_that_cannot_be_read_is_reported_without_its_signature(
    store: S3Store, key: AwsKey, capfd: pytest.CaptureFixture[str]
) -> None:
    async def ask(name: str) -> bytes:
        pieces: list[bytes] = []

        async def keep(piece: bytes) -> None:
            pieces.append(piece)

        views = [DatasetView("blocks", [sign(store, name)], [])]
        async with open_pool(1, LIMITS) as pool, pool.take() as process:
            await process.run("SELECT count(*) AS n FROM blocks", views, LIMITS, None, keep)
        return b"".join(pieces)

    assert b"20" in asyncio.run(ask("b.parquet"))
    with pytest.raises(Unavailable, match="cannot read the pinned files") as refused:
        asyncio.run(ask("missing.parquet"))
    printed = "".join(capfd.readouterr())
    assert "missing.parquet" in printed  # the log names the object
    for text in (printed, repr(refused.value)):
        assert key.access_key not in text and "X-Amz" not in text
