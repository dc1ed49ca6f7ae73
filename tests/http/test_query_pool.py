"""Query processes: each wall against hostile SQL alone, limits, replacement, and fair slots."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.sql.duckdb_corpus import EXHAUSTING, HARMLESS, HOSTILE, fill_in
from trace_etl.http.fair_slots import FairSlots
from trace_etl.model.errors import Invalid, TraceError, Unavailable
from trace_etl.model.result_formats import ResultFormat
from trace_etl.query.errors import QueryTimedOut, QueryTooLarge, TooManyQueries
from trace_etl.query.processes import frames, query_process
from trace_etl.query.processes.pool import QueryPool, QueryProcess, open_pool
from trace_etl.query.requests import DatasetView, QueryLimits
from trace_etl.query.slots import make_user_slots
from trace_etl.query.sql.engine import open_engine, prepare_engine
from trace_etl.query.sql.sql_guard import SqlGuard
from trace_etl.query.sql.tables import ReadBudget

LIMITS = QueryLimits(100, "100MB", threads=1)
SECRET = "root:secret"
SPIN = "SELECT count(*) FROM range(10000000000) AS a, range(1000) AS b"


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a granted file, and one with secrets."""
    top = tmp_path_factory.mktemp("walls")
    (top / "granted").mkdir()
    numbers = pa.array(range(20), pa.int64())
    hashes = pa.array([bytes([n]) for n in range(20)])
    pq.write_table(
        pa.table({"block_number": numbers, "hash": hashes}), top / "granted" / "b.parquet"
    )
    (top / "secret.txt").write_text(SECRET)
    pq.write_table(pa.table({"secret": [SECRET]}), top / "secret.parquet")
    return top


@pytest.fixture(scope="module", name="views")
def _views(files: Path) -> list[DatasetView]:
    return [DatasetView("blocks", [str(files / "granted" / "b.parquet")], [])]


@pytest.fixture(scope="module")
def runner() -> Generator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Generator[QueryPool]:
    opened = open_pool(2, LIMITS)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


async def ask(
    process: QueryProcess, text: str, views: list[DatasetView], limits: QueryLimits = LIMITS
) -> bytes:
    """Run a query and return its rows."""
    pieces: list[bytes] = []

    async def keep(piece: bytes) -> None:
        pieces.append(piece)

    await process.run(text, views, limits, None, keep, is_checked=True)
    return b"".join(pieces)


def hostile(files: Path) -> list[str]:
    return list(fill_in(HOSTILE, files / "granted" / "b.parquet", files))


def test_the_corpora_are_large_enough() -> None:
    assert len(set(HOSTILE)) >= 300 and len(set(HARMLESS)) >= 100


def test_the_sql_guard_alone_stops_every_hostile_select(
    files: Path, views: list[DatasetView]
) -> None:
    """The engine has no restrictions here."""
    guard = SqlGuard()
    with duckdb.connect() as engine:
        engine.execute(f"CREATE VIEW blocks AS FROM read_parquet('{views[0].files[0]}')")
        for text in hostile(files):
            try:
                tables = {table.name for table in guard.check(text)}
            except Invalid:
                continue
            if tables <= {"blocks"}:  # the SQL guard lets it pass: it must be harmless
                with pytest.raises(duckdb.BinderException):
                    engine.execute(text)


def test_the_engine_and_its_process_alone_stop_every_hostile_select(
    runner: asyncio.Runner, pool: QueryPool, files: Path, views: list[DatasetView]
) -> None:
    """The SQL guard is off. Names of granted files are visible, but no other file's content."""
    before = sorted(files.rglob("*"))

    async def run(text: str) -> str:
        async with pool.take() as process:
            return (await ask(process, text, views)).decode()

    with locked_engine(views) as engine:
        for text in hostile(files):
            is_safe = is_select(text)  # otherwise it may change or crash its engine
            try:
                rows = repr(engine.execute(text).fetchall()) if is_safe else runner.run(run(text))
            except (TraceError, duckdb.Error):
                continue
            assert not any(it in rows for it in (SECRET, "root:x:", "TRACE_")), text
    assert sorted(files.rglob("*")) == before


def locked_engine(views: list[DatasetView]) -> duckdb.DuckDBPyConnection:
    engine = open_engine(LIMITS)
    prepare_engine(engine, views, None, ReadBudget(0))
    return engine


def is_select(text: str) -> bool:
    try:
        (statement,) = duckdb.extract_statements(text)
    except (duckdb.Error, ValueError):
        return False
    return statement.type == duckdb.StatementType.SELECT and "_scan" not in text


def test_without_the_sql_guard_the_settings_stay_locked(
    runner: asyncio.Runner, pool: QueryPool
) -> None:
    async def set_something(text: str) -> None:
        async with pool.take() as process:
            await ask(process, text, [])

    for text in ("SET enable_external_access = true", "SET threads = 8", "RESET allowed_paths"):
        with pytest.raises(Invalid, match="locked"):
            runner.run(set_something(text))


def test_both_walls_let_every_harmless_select_pass(views: list[DatasetView]) -> None:
    guard = SqlGuard()
    with locked_engine(views) as engine:
        for text in HARMLESS:
            assert {table.name for table in guard.check(text)} <= {"blocks"}, text
            engine.execute(text).fetchall()


def test_every_exhausting_select_is_stopped_and_its_process_replaced(
    runner: asyncio.Runner, pool: QueryPool
) -> None:
    async def run(text: str) -> None:
        limits = QueryLimits(10, "100MB", threads=1, cpu_seconds=1)
        async with pool.take() as process:
            await process.check(text, limits)
            await ask(process, text, [], limits)

    async def run_all() -> None:
        for text in EXHAUSTING:
            with pytest.raises((QueryTimedOut, QueryTooLarge), match=r"processor time|100MB"):
                await run(text)
            await run("SELECT 1")

    runner.run(run_all())


def test_a_canceled_query_is_killed(runner: asyncio.Runner, pool: QueryPool) -> None:
    async def cancel() -> int:
        async with pool.take() as process:
            work = asyncio.create_task(ask(process, SPIN, []))
            await asyncio.sleep(0)  # let it send the request
            work.cancel()
            await asyncio.wait({work})
        return await process.ended

    assert runner.run(cancel()) == -signal.SIGKILL


def test_the_pool_survives_the_death_of_its_fork_server(
    runner: asyncio.Runner, pool: QueryPool
) -> None:
    async def run() -> None:
        async with pool.take() as process:
            work = asyncio.create_task(ask(process, SPIN, []))
            await asyncio.sleep(0)
            assert pool._server is not None
            os.kill(pool._server.pid, signal.SIGKILL)
            pool._server.wait()
            with pytest.raises(Unavailable, match="ended with its fork server; try again"):
                await work  # the kernel killed the process together with its parent
        async with pool.take() as process:
            assert await ask(process, "SELECT 1", []) == b"[1]"

    runner.run(run())


def test_a_process_is_replaced_after_a_run_but_not_after_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check of a long query may keep much memory."""
    used = iter([0, 0])
    monkeypatch.setattr(query_process, "_measure_memory", lambda: next(used, 10**12))
    for name in ("_confine", "_limit_resources"):  # this process must not be restricted
        monkeypatch.setattr(query_process, name, lambda *_: None)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            query_process.serve(theirs, os.getpid(), LIMITS)

    process = threading.Thread(target=serve)
    process.start()
    received: list[bytes] = []
    for request in (
        {"sql": "SELECT 1", "params": []},
        {
            "sql": "SELECT 1",
            "params": [],
            "views": [],
            "data_dsn": None,
            "format": "json",
            "caller": "",
            "is_checked": True,
        },
    ):
        frames.send(ours, frames.REQUEST, orjson.dumps({**request, "limits": asdict(LIMITS)}))
        while not received or received[-1] != frames.DONE:
            frame = frames.receive(ours)
            assert frame is not None, "the process ended before it answered"
            assert frame[0] != frames.FAILED, frame[1]
            received.append(frame[0])
        received.append(b"answered")
    process.join()
    assert received.count(b"answered") == 2 and frames.ROWS in received
    ours.close()


# --- slots ------------------------------------------------------------------------------------


async def _start(slots: FairSlots, user: str, log: list[str], release: asyncio.Event) -> None:
    async with slots.take(user, 60):
        log.append(user)
        await release.wait()


async def _let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_user_cannot_take_every_slot() -> None:
    slots, log, release = make_user_slots(4, per_user=3, max_waiting=10), [], asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(_start(slots, "ann", log, release))
        await _let_others_run()
        assert slots.free == 1
        group.create_task(_start(slots, "bob", log, release))
        await _let_others_run()
        assert log == ["ann", "ann", "ann", "bob"]
        release.set()
    assert slots.free == 4 and log.count("ann") == 6


async def test_waiting_users_get_slots_in_turn() -> None:
    slots, log, release = make_user_slots(1, per_user=1, max_waiting=10), [], asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for user in ("ann", "ann", "ann", "bob", "cid", "bob"):
            group.create_task(_start(slots, user, log, release))
        await _let_others_run()
        assert len(log) == 1
        release.set()
    assert log == ["ann", "ann", "bob", "cid", "ann", "bob"]
    assert slots.free == 1


async def test_the_refusal_names_the_limit() -> None:
    slots = make_user_slots(2, per_user=1, max_waiting=1)
    async with slots.take("ann", 60):
        with pytest.raises(TooManyQueries, match="TRACE_QUERY_SLOTS_PER_USER"):
            async with slots.take("ann", 0.01):
                pass
        waiting = asyncio.create_task(_start(slots, "ann", [], asyncio.Event()))
        await asyncio.sleep(0)
        with pytest.raises(TooManyQueries, match="TRACE_QUERY_QUEUE_PER_USER"):
            async with slots.take("ann", 60):
                pass
        async with slots.take("bob", 60):
            with pytest.raises(
                Unavailable, match=r"all 2 slots for queries .TRACE_QUERY_SLOTS. were busy"
            ):
                async with slots.take("cid", 0.01):
                    pass
        waiting.cancel()
        await asyncio.wait({waiting})
    assert slots.free == 2


def test_engines_are_kept_for_the_same_caller_and_files_only() -> None:
    engines = query_process.Engines()
    with engines.use("ann", b"blocks", LIMITS) as (first, has_views):
        assert not has_views
    with engines.use("ann", b"logs", LIMITS) as (second, has_views):
        assert second is not first and not has_views
    with engines.use("ann", b"blocks", LIMITS) as (again, has_views):
        assert again is first and has_views
    with engines.use("bob", b"blocks", LIMITS) as (other, has_views):
        assert other is not first and not has_views
        for engine in (first, second):  # closed before another caller's query runs
            with pytest.raises(duckdb.ConnectionException):
                engine.execute("SELECT 1")
    with pytest.raises(ZeroDivisionError), engines.use("bob", b"blocks", LIMITS) as (failed, _):
        raise ZeroDivisionError
    with engines.use("bob", b"blocks", LIMITS) as (fresh, has_views):
        assert fresh is not failed and not has_views
    with engines.use("bob", None, LIMITS) as (unkept, _):
        pass
    with pytest.raises(duckdb.ConnectionException):
        unkept.execute("SELECT 1")
    for number in range(9):
        with engines.use("bob", b"%d" % number, LIMITS):
            pass
    with pytest.raises(duckdb.ConnectionException):
        fresh.execute("SELECT 1")  # only the last ones are kept


def test_a_prepared_engine_gets_the_threads_of_its_query() -> None:
    def count_threads(engine: duckdb.DuckDBPyConnection) -> int:
        return int(engine.execute("SELECT current_setting('threads')").fetchall()[0][0])

    engines = query_process.Engines()
    for threads in (1, 3, 2):
        engines.prepare(LIMITS)
        with engines.use("ann", None, replace(LIMITS, threads=threads)) as (engine, _):
            assert count_threads(engine) == threads


def test_a_caller_gets_the_process_again_that_kept_its_views(
    runner: asyncio.Runner, pool: QueryPool, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    duckdb.execute(f"COPY (SELECT 42 AS n) TO '{file}'")
    views = [DatasetView("rows", [str(file)], [])]

    async def run(process: QueryProcess, caller: str) -> bytes:
        pieces: list[bytes] = []

        async def keep(piece: bytes) -> None:
            pieces.append(piece)

        await process.run(
            "SELECT * FROM rows",
            views,
            LIMITS,
            None,
            keep,
            ResultFormat.JSON,
            None,
            caller,
            is_checked=True,
        )
        return b"".join(pieces)

    async def take_turns() -> None:
        async with pool.take("ann") as ann, pool.take("bob") as bob:
            assert await run(ann, "ann") == await run(bob, "bob") == b"[42]"
        for caller, process in (("bob", bob), ("ann", ann), ("ann", ann), ("bob", bob)):
            async with pool.take(caller) as found:
                assert found is process and await run(found, caller) == b"[42]"

    runner.run(take_turns())
