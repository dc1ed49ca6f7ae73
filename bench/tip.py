"""Compare following the tip into hot tables with `ethereumetl stream` into the same Postgres."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from bench import replay
from bench.harness import Result, compare
from trace_etl.data import connection, followers, migrations
from trace_etl.data.followers import Writer
from trace_etl.devtools.devchain import DevChain
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.model.storage import hot_table
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.follower import ChainFollower, FollowPlan, HotOutput
from trace_etl.spark.follow.streaming import StreamingFollower
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings

BLOCKS = 1500
THEIR_BLOCKS = 60
TXS_PER_BLOCK = 29
PROGRAM = Path(sys.prefix) / "ethereum-etl" / "bin"
KINDS = ("blocks", "transactions", "logs")
# `ethereumetl stream` needs existing tables; this creates them from its own definitions.
_THEIR_TABLES = """
import sys
from sqlalchemy import create_engine
from ethereumetl.streaming.postgres_tables import metadata
metadata.create_all(create_engine(sys.argv[1]))
"""


@contextmanager
def serving(directory: Path) -> Generator[str]:
    """Start Postgres like the stack does, with durable commits; yields the DSN of the data."""
    embedded = EmbeddedPostgres(directory / "cluster", passfile=directory / "pgpass")
    server = embedded.start()
    try:
        dsns = databases.provision(server)
        migrations.apply(dsns.data)
        yield dsns.data
    finally:
        embedded.stop()
        embedded.remove()


@contextmanager
def _following(url: str, dsn: str) -> Generator[ChainFollower]:
    """Open a follower with new hot tables for blocks, transactions and logs."""
    outputs: list[HotOutput] = []
    for kind in KINDS:
        dataset, version = uuid4(), uuid4()
        outputs.append(HotOutput(kind, hot_table(dataset, version), dataset, version))
    plan = FollowPlan("bench.tip", Writer(outputs[0].dataset_version, uuid4(), 1), outputs, start=0)
    with TipReader(RpcSource((url,)), KINDS) as reader, connection.connect(dsn) as conn:
        yield ChainFollower(plan, reader, conn, lambda events, invalidations=(): None, Event())


def ours(url: str, dsn: str) -> float:
    """Return blocks per second of the follower loop, including its start."""
    began = time.perf_counter()
    with _following(url, dsn) as follower:
        follower.open()
        while follower.step():
            pass
        seconds = time.perf_counter() - began
    _check(dsn, follower.plan.outputs[0].table, BLOCKS)
    return BLOCKS / seconds


def streaming(url: str, dsn: str, spark: SparkSession, directory: Path) -> float:
    """Return blocks per second of Structured Streaming, without the start of the query."""
    with _following(url, dsn) as follower, ThreadPoolExecutor(1) as pool:
        made = StreamingFollower(follower, spark, RpcSource((url,)), directory)
        running = pool.submit(made.run)
        running.add_done_callback(lambda _: follower.stop.set())
        try:
            first = _wait_until(dsn, follower, 1)
            last = _wait_until(dsn, follower, BLOCKS)
        finally:
            follower.stop.set()
        running.result()
    _check(dsn, follower.plan.outputs[0].table, BLOCKS)
    return (last[0] - first[0]) / (last[1] - first[1])


def _wait_until(dsn: str, follower: ChainFollower, blocks: int) -> tuple[int, float]:
    """Wait until the follower has this number of blocks; return its number and the time."""
    with connection.connect(dsn) as conn:
        while not follower.stop.wait(0.005):
            position = followers.read_position(conn, follower.plan.writer.stream)
            if position and position.number is not None and position.number + 1 >= blocks:
                return position.number + 1, time.perf_counter()
    raise RuntimeError("the streaming query ended early")


def theirs(url: str, dsn: str, directory: Path) -> float:
    """Return blocks per second of `ethereumetl stream`, without its start."""
    address = _address(dsn)
    subprocess.run([PROGRAM / "python", "-c", _THEIR_TABLES, address], check=True)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("TRUNCATE blocks, transactions, logs")
    arguments = (
        *("--provider-uri", url, "--output", address, "--start-block", "0"),
        *("--last-synced-block-file", str(directory / f"synced-{uuid4().hex}")),
        *("--entity-types", "block,transaction,log"),
        *("--batch-size", "50", "--block-batch-size", "10", "--period-seconds", "1"),
    )
    process = subprocess.Popen(
        [PROGRAM / "ethereumetl", "stream", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        first = _wait_for(dsn, 1, process)
        last = _wait_for(dsn, THEIR_BLOCKS, process)
    finally:
        process.terminate()
        process.wait()
    return (last[0] - first[0]) / (last[1] - first[1])


def _address(dsn: str) -> str:
    """Return the connection string for SQLAlchemy, which does not support password files."""
    parts = conninfo_to_dict(dsn)
    for line in Path(str(parts["passfile"])).read_text().splitlines():
        *_, user, password = line.split(":")
        if user == parts["user"]:
            place = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
            return f"postgresql+pg8000://{user}:{password}@{place}"
    raise RuntimeError("no password for the data role")


def _wait_for(dsn: str, blocks: int, process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait until the table has this number of blocks; return its number and the time."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        while True:
            row = conn.execute("SELECT count(*) FROM blocks").fetchone()
            if row and row[0] >= blocks:
                return row[0], time.perf_counter()
            if process.poll() is not None:
                raise RuntimeError("ethereumetl stream ended early")
            time.sleep(0.02)


def _check(dsn: str, table: str, blocks: int) -> None:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(f"SELECT count(*) FROM {table}").fetchone()
    if row != (blocks,):
        raise RuntimeError(f"{row} blocks of {blocks}")


def run() -> list[Result]:
    """Write blocks of 29 transactions and 38 logs from a recording into one Postgres."""
    if not (PROGRAM / "ethereumetl").exists():
        print("tip_vs_ethereumetl needs ethereum-etl: use make bench", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        directory = Path(name)
        chain = directory / "chain.jsonl"
        replay.write(
            chain, replay.lines_of_chain(DevChain(length=BLOCKS, txs_per_block=TXS_PER_BLOCK))
        )
        runner = SparkRunner(SparkSettings(FileStore(directory), directory / "spark"))
        with replay.replaying(chain) as url, serving(directory) as dsn, closing(runner):
            runner.warm()
            spark = runner.session.get()
            return [
                compare(
                    "tip_vs_ethereumetl",
                    lambda: ours(url, dsn),
                    lambda: theirs(url, dsn, directory),
                    unit="blocks/s",
                    goal=">= 20",
                ),
                compare(
                    "tip_streaming_vs_ethereumetl",
                    lambda: streaming(url, dsn, spark, directory),
                    lambda: theirs(url, dsn, directory),
                    unit="blocks/s",
                    goal=">= 20",
                    rounds=7,  # the JVM compiles during the first ones; a follower runs for weeks
                ),
            ]
