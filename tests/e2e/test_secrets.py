"""Secrets of jobs in a whole stack: they reach the operator, and nothing else."""

import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from support.chain.keyed_node import NODE_KEY, KeyedNode
from support.services.whole_stack import Stack, connect
from support.waiting import eventually
from trace_etl.lite import configuration
from trace_etl.lite.credentials import passwords
from trace_etl.lite.home import Home
from trace_etl.lite.postgres.server import SUPERUSER

DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: ingest
    operator: cryo_ingest
    inputs: [{{from: {{job: request}}}}]
    outputs: [blocks]
    secrets: [{secret}]
    max_attempts: 1
    config: {{rpc: keyed}}
"""
FORMS = [NODE_KEY.encode(), quote(NODE_KEY, "").encode()]


class CommandLines(threading.Thread):
    """Collects the command lines of all processes while a block runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for process in psutil.process_iter(["cmdline"]):
                self.seen.add(" ".join(process.info["cmdline"] or []))

    def __enter__(self) -> "CommandLines":
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self.join()


def run_ingest(stack: Stack, directory: Path, name: str, secret: str) -> dict[str, object]:
    """Deploy the DAG, trigger one range, and return the task when it has ended."""
    file = directory / f"{name}.yaml"
    file.write_text(DAG.format(name=name, secret=secret))
    done = stack.trace("deploy", "--no-check", str(file))
    assert done.returncode == 0, done.stderr
    with connect(stack.home) as client:
        client.post("/v1/triggers", {"dag": name, "job": "request", "start": 0, "end": 9})

    def ended() -> list[dict[str, object]]:
        return [
            task
            for task in stack.tasks(name)
            if task["job"] == "ingest" and task["status"] in ("Completed", "Failed")
        ]

    eventually(lambda: bool(ended()), f"the task of {name} has ended")
    return ended()[0]


def dump_databases(home: Home) -> bytes:
    """Return every row of every table of every database of the stack, as text."""
    port = configuration.read(home.config).ports["postgres"].number
    password = passwords.read(home.pgpass)[SUPERUSER]
    server = f"host=127.0.0.1 port={port} user={SUPERUSER} password={password}"
    found: list[bytes] = []
    with psycopg.connect(f"{server} dbname=postgres") as conn:
        databases = conn.execute("SELECT datname FROM pg_database WHERE datallowconn").fetchall()
    for (database,) in databases:
        with psycopg.connect(f"{server} dbname={database}") as conn:
            tables = conn.execute(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
                "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
            ).fetchall()
            for (table,) in tables:
                with conn.cursor().copy(f"COPY {table} TO STDOUT") as rows:
                    found += [bytes(row) for row in rows]
    return b"\n".join(found)


def read_files(home: Path, *, without: Path) -> bytes:
    """Return the content of all files of the home: logs, objects, settings, Spark's directories."""
    files = [
        path for path in home.rglob("*") if path.is_file() and not path.is_relative_to(without)
    ]
    assert any(path.name == "worker.log" for path in files)
    assert any(path.name == "spark.log" for path in files)
    found: list[bytes] = []
    for path in files:
        with suppress(FileNotFoundError):  # the output of a task that has just ended
            found.append(path.read_bytes())
    return b"\n".join(found)


def test_a_secret_reaches_the_node_and_is_stored_nowhere(
    stack: Stack, keyed_node: KeyedNode, tmp_path: Path
) -> None:
    with CommandLines() as lines:
        task = run_ingest(stack, tmp_path, "keyed", "node_key")
    assert task["status"] == "Completed", task["error_message"]
    assert keyed_node.paths == {f"/v3/{quote(NODE_KEY, '')}"}
    database = dump_databases(Home(stack.home))
    assert b"node_key" in database  # its name is known there
    stored = read_files(stack.home, without=stack.home / "secrets")
    for form in FORMS:
        assert form not in database
        assert form not in stored
        assert not [line for line in lines.seen if form.decode() in line]
    assert any("trace_etl.worker" in line for line in lines.seen)


def test_a_missing_secret_is_named_by_the_plan_and_fails_the_task(
    stack: Stack, tmp_path: Path
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(DAG.format(name="unknown_key", secret="other_key"))
    [warning] = stack.json("plan", "--no-check", str(file))["warnings"]
    assert warning.startswith("ingest: the secret 'other_key' is missing or empty, so its tasks")
    task = run_ingest(stack, tmp_path, "unknown_key", "other_key")
    assert (task["status"], task["error_code"]) == ("Failed", "secret_missing")
    assert "other_key" in str(task["error_message"])


def test_a_job_that_does_not_name_the_secret_of_its_pool_fails(
    stack: Stack, tmp_path: Path
) -> None:
    (stack.home / "secrets" / "unused_key").write_text("unused")
    task = run_ingest(stack, tmp_path, "without_key", "unused_key")
    assert (task["status"], task["error_code"]) == ("Failed", "secret_missing")
    assert "'node_key'" in str(task["error_message"])
    assert "secrets" in str(task["error_message"])
