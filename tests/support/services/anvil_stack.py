"""A whole stack that follows a real node, for the tests of the chain and of the console."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from support.chain import anvil
from support.chain.anvil import Anvil
from support.cli import run_command, start_command
from support.services.whole_stack import connect
from trace_etl.cli.client import RequestRejected
from trace_etl.lite import stack as lite
from trace_etl.lite import status
from trace_etl.lite.home import Home

_PACKAGES = Path(__file__).parents[2] / "chain"
# A column that only one table has identifies it.
_UNIQUE_COLUMNS = {"blocks": "author", "transactions": "nonce", "logs": "topic0"}
HotRows = dict[str, list[dict[str, Any]]]


class AnvilStack:
    """A home, the command line for it, and the node that it reads."""

    def __init__(self, home: Path, node: Anvil) -> None:
        self.home, self.node = home, node

    def trace(self, *words: str) -> str:
        """Run a command that must succeed, and return what it printed."""
        run = start_command if words[0] == "up" else run_command
        done = run(*words, TRACE_HOME=str(self.home), TRACE_RETRY_INITIAL="PT1S")
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def deploy(self, text: str) -> None:
        file = self.home.with_name("dag.yaml")
        file.write_text(text)
        self.trace("deploy", "--no-check", str(file))

    def get(self, path: str, **params: Any) -> Any:
        with connect(self.home) as client:
            return client.get(path, **params)

    def rows(self, sql: str) -> list[list[Any]]:
        """Run a query. Returns no rows while the dataset does not exist."""
        with connect(self.home) as client:
            try:
                return client.query(sql)["rows"]
            except RequestRejected:
                return []

    def worker(self) -> int:
        """Return the process id of the worker."""
        parts = status.check(Home(self.home)).parts
        return next(part.pid for part in parts if part.name == "worker" and part.pid)

    def hot(self) -> list[HotRows]:
        """Return every row of the hot tables of each follower."""
        found: dict[str, list[list[dict[str, Any]]]] = {kind: [] for kind in _UNIQUE_COLUMNS}
        with psycopg.connect(self._data_dsn, row_factory=dict_row) as conn:
            tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dataset%'"
            for table in [row["tablename"] for row in conn.execute(tables)]:
                names = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
                columns = {row["attname"] for row in conn.execute(names, (table,))}
                rows = conn.execute(f"SELECT * FROM {table}").fetchall()
                for kind, column in _UNIQUE_COLUMNS.items():
                    if column in columns:
                        found[kind].append(sorted(rows, key=_sort_key))
        count = min(len(tables) for tables in found.values())
        return [{kind: tables[n] for kind, tables in found.items()} for n in range(count)]

    @cached_property
    def _data_dsn(self) -> str:
        """Return the worker's connection string to Postgres data."""
        entries = Path(f"/proc/{self.worker()}/environ").read_text().split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)["TRACE_DATA_DSN"]


def _sort_key(row: dict[str, Any]) -> tuple[int, ...]:
    keys = ("block_number", "transaction_index", "log_index")
    return tuple(row[key] for key in keys if key in row)


@contextmanager
def running_anvil_stack(home: Path) -> Generator[AnvilStack]:
    """Start a node and a stack that reads it, and remove both at the end of the block."""
    with anvil.running(_PACKAGES) as node:
        made = AnvilStack(home, node)
        try:
            made.trace("up", "--detach", "--rpc-url", node.url)
            yield made
        finally:
            lite.purge(Home(home))
