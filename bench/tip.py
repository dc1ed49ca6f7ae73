"""From the tip to hot tables, against `ethereumetl stream` into the same Postgres."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import replay
from bench.harness import Result, compare
from trace_etl.data import connection, migrations
from trace_etl.data.followers import Writer
from trace_etl.devchain import DevChain
from trace_etl.lite import databases
from trace_etl.lite.postgres import EmbeddedPostgres
from trace_etl.model.storage import hot_table
from trace_etl.pipeline.evm.fetch import Source
from trace_etl.pipeline.evm.tip import TipReader
from trace_etl.pipeline.follower import Follower, HotOutput, Plan

BLOCKS = 1500
THEIR_BLOCKS = 60
TXS_PER_BLOCK = 29
PROGRAM = Path(sys.prefix) / "ethereum-etl" / "bin"
KINDS = ("blocks", "transactions", "logs")
# Their stream wants its tables made beforehand; this is how their own definitions make them.
_THEIR_TABLES = """
import sys
from sqlalchemy import create_engine
from ethereumetl.streaming.postgres_tables import metadata
metadata.create_all(create_engine(sys.argv[1]))
"""


@contextmanager
def serving(directory: Path) -> Generator[str]:
    """A Postgres as the stack runs it, commits durable; the connection string of its data."""
    embedded = EmbeddedPostgres(directory / "cluster", passfile=directory / "pgpass")
    server = embedded.start()
    try:
        dsns = databases.provision(server)
        migrations.apply(dsns.data)
        yield dsns.data
    finally:
        embedded.stop()
        embedded.remove()


def ours(url: str, dsn: str) -> float:
    """Blocks per second into fresh hot tables: blocks, transactions and logs."""
    outputs: list[HotOutput] = []
    for kind in KINDS:
        dataset, version = uuid4(), uuid4()
        outputs.append(HotOutput(kind, hot_table(dataset, version), dataset, version))
    plan = Plan("bench.tip", Writer(outputs[0].dataset_version, uuid4(), 1), outputs, start=0)
    began = time.perf_counter()
    with TipReader(Source((url,)), KINDS) as reader, connection.connect(dsn) as conn:
        follower = Follower(plan, reader, conn, lambda events, invalidations=(): None, Event())
        follower.open()
        while follower.step():
            pass
    seconds = time.perf_counter() - began
    _check(dsn, outputs[0].table, BLOCKS)
    return BLOCKS / seconds


def theirs(url: str, dsn: str, directory: Path) -> float:
    """Blocks per second of `ethereumetl stream`, its start left out."""
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
    """A connection string as SQLAlchemy wants it; it knows no password file."""
    parts = conninfo_to_dict(dsn)
    for line in Path(str(parts["passfile"])).read_text().splitlines():
        *_, user, password = line.split(":")
        if user == parts["user"]:
            place = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
            return f"postgresql+pg8000://{user}:{password}@{place}"
    raise RuntimeError("no password for the data role")


def _wait_for(dsn: str, blocks: int, process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """How many blocks there are, and when, once there are so many."""
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
    """Blocks of 29 transactions and 38 logs, from a recording, into one Postgres."""
    if not (PROGRAM / "ethereumetl").exists():
        print("tip_vs_ethereumetl needs ethereum-etl: use make bench", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        directory = Path(name)
        chain = directory / "chain.jsonl"
        replay.write(
            chain, replay.lines_of_chain(DevChain(length=BLOCKS, txs_per_block=TXS_PER_BLOCK))
        )
        with replay.replaying(chain) as url, serving(directory) as dsn:
            return [
                compare(
                    "tip_vs_ethereumetl",
                    lambda: ours(url, dsn),
                    lambda: theirs(url, dsn, directory),
                    unit="blocks/s",
                    goal=">= 20",
                )
            ]
