"""DuckDB reads pinned objects of S3 through signed URLs, and nothing else."""

import asyncio
import io
import os
import ssl
import threading
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.services.ministack import AwsKey, Ministack, make_options
from support.sql.duckdb_corpus import HARMLESS, HOSTILE, fill_in
from support.waiting import eventually
from trace_etl.client.remote_files import FilesUnreadable, RangeFile, open_dataset
from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.objects.s3_store import S3Store
from trace_etl.query.processes.pool import open_pool
from trace_etl.query.requests import DatasetView, QueryLimits
from trace_etl.query.sql.engine import open_engine, prepare_engine
from trace_etl.query.sql.sql_guard import SqlGuard
from trace_etl.query.sql.tables import ReadBudget
from trace_etl.spark.io.scan import Scan

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


class CountingProxy(BaseHTTPRequestHandler):
    """Passes requests on to the object store, and counts the bytes of the answers."""

    protocol_version = "HTTP/1.1"
    target = ""
    sent = 0

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        store = HTTPConnection(self.target)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        store.request(self.command, self.path, headers=headers)  # the Host is part of the signature
        answer = store.getresponse()
        content = answer.read()
        store.close()
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Range", "ETag", "Last-Modified", "Accept-Ranges"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        is_head = self.command == "HEAD"  # its answer has the length of a content that is not sent
        length = answer.headers["Content-Length"] if is_head else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)
        type(self).sent += len(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy(aws: Ministack) -> Generator[str]:
    CountingProxy.target, CountingProxy.sent = aws.url.removeprefix("http://"), 0
    with ThreadingHTTPServer(("127.0.0.1", 0), CountingProxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def proxied(store: S3Store, proxy: str) -> S3Store:
    """The same store, through the proxy that counts bytes."""
    return replace(store, options=replace(store.options, endpoint=proxy))


@pytest.fixture
def wide(store: S3Store, proxied: S3Store) -> tuple[str, int, pa.Table]:
    """The URL of a file with 20 columns in 5 row groups, its size, and its rows."""
    columns = {f"c{n}": pa.array([os.urandom(16) for _ in range(10_000)]) for n in range(20)}
    table = pa.table({"number": pa.array(range(10_000), pa.int64()), **columns})
    content = io.BytesIO()
    pq.write_table(table, content, row_group_size=2000, use_dictionary=False)
    store.put(f"{store.bucket}/wide.parquet", content.getvalue())
    return sign(proxied, "wide.parquet"), len(content.getvalue()), table


def test_a_query_fetches_only_the_columns_and_row_groups_that_it_needs(
    wide: tuple[str, int, pa.Table],
) -> None:
    url, size, table = wide

    def fetch(sql: str) -> tuple[list[Any], int]:
        before = CountingProxy.sent
        with open_engine(LIMITS) as engine:
            prepare_engine(engine, [DatasetView("wide", [url], [])], None, ReadBudget(0))
            return engine.execute(sql).fetchall(), CountingProxy.sent - before

    _, footer = fetch("SELECT count(*) FROM wide")
    rows, one = fetch("SELECT c7 FROM wide")
    assert [row[0] for row in rows] == table["c7"].to_pylist()
    assert one - footer < size / 20 * 1.5  # one of 20 columns
    rows, part = fetch("SELECT c7 FROM wide WHERE number = 4321")
    assert rows == [(table["c7"][4321].as_py(),)] and part < one
    rows, whole = fetch("SELECT * FROM wide")
    assert len(rows) == 10_000 and whole > size * 0.9


def test_a_scan_of_signed_urls_fetches_only_what_it_needs(wide: tuple[str, int, pa.Table]) -> None:
    url, size, table = wide
    frame = polars.scan_pyarrow_dataset(open_dataset([url, url]))
    before = CountingProxy.sent
    found = frame.select("c3").collect()
    assert found["c3"].to_list() == table["c3"].to_pylist() * 2
    assert CountingProxy.sent - before < 2 * size / 20 * 1.5
    picked = frame.filter(polars.col("number") == 7).select("c1").collect()
    assert picked["c1"].to_list() == [table["c1"][7].as_py()] * 2


def test_a_worker_of_spark_fetches_only_the_columns_that_are_selected(
    proxied: S3Store, wide: tuple[str, int, pa.Table]
) -> None:
    _, size, table = wide
    scan = Scan(proxied, (f"{proxied.bucket}/wide.parquet",), table.schema)

    def fetch(chosen: Scan) -> tuple[pa.Table, int]:
        before = CountingProxy.sent
        return pa.Table.from_batches(chosen.batches(), table.schema), CountingProxy.sent - before

    found, whole = fetch(scan)
    assert found.equals(table) and whole > size * 0.9
    found, part = fetch(scan.select(frozenset({"c7"})))
    assert found["c7"].equals(table["c7"]) and found["c8"].null_count == table.num_rows
    assert part < whole / 5, f"{part} of {size} bytes"
    found, footer = fetch(scan.select(frozenset()))
    assert found.num_rows == table.num_rows and footer <= part


def test_a_scan_says_that_its_urls_have_expired(store: S3Store) -> None:
    (url,) = store.read_urls([f"{store.bucket}/b.parquet"], life=timedelta(seconds=1))
    file = RangeFile(url, ssl.create_default_context())

    def is_refused() -> bool:
        try:
            file.seek(0)
            return not file.read(4)
        except FilesUnreadable as error:
            return "call scan() again" in str(error)

    eventually(is_refused, "the URL has expired")


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
            await process.run(
                "SELECT count(*) AS n FROM blocks", views, LIMITS, None, keep, is_checked=True
            )
        return b"".join(pieces)

    assert b"20" in asyncio.run(ask("b.parquet"))
    with pytest.raises(Unavailable, match="cannot read the pinned files") as refused:
        asyncio.run(ask("missing.parquet"))
    printed = "".join(capfd.readouterr())
    assert "missing.parquet" in printed  # the log names the object
    for text in (printed, repr(refused.value)):
        assert key.access_key not in text and "X-Amz" not in text
