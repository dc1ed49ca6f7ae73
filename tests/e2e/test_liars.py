"""A provider that lies or fails: through `trace deploy` and `trace trigger`, no wrong row is ever visible."""

import os
import re
import threading
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from support.chain.chain_rows import as_json, expected
from support.chain.lying_node import FAULTS, LAST, new_chain
from support.services.whole_stack import Stack, connect
from support.waiting import eventually
from trace_etl.cli.client import RequestRejected, StackClient

TABLES = ("blocks", "transactions", "logs")
# The tip is followed by both engines.
FOLLOWED = {"logs_dropped": "loop", "log_data_changed": "streaming"}
# One lie of each kind, and those that only a task corrects. `tests/spark/test_lying_nodes.py` tells the others.
USUAL = (
    *("logs_dropped", "receipts_swapped", "value_changed", "chain_id_changed", "time_changed"),
    *("another_fork_from_block_15", "head_lags", "null_receipts", "truncated_json"),
    "half_of_the_requests_refused",
)
LIES = {name: FAULTS[name] for name in (FAULTS if "TRACE_TEST_PEERS" in os.environ else USUAL)}


def write_dag(path: Path) -> Path:
    jobs, names = ["  - {name: request, source: {kind: manual}, outputs: [ranges]}"], list[str]()
    for lie in LIES:
        for pool in (lie, f"{lie}_helped"):
            # A helped job may need a second attempt: it reads from the next endpoint.
            attempts = 3 if pool != lie else 1
            jobs.append(
                f"  - {{name: {pool}, operator: cryo_ingest, inputs: [{{from: {{job: request}}}}], "
                f"outputs: [blocks, transactions, logs], max_attempts: {attempts}, "
                f"config: {{rpc: {pool}}}}}"
            )
            names += [
                f"  - {{name: {pool}_{table}, from: {{job: {pool}, output: {table}}}}}"
                for table in TABLES
            ]
    return write_jobs(path, "liars", jobs, names)


def write_follower_dag(path: Path) -> Path:
    jobs = [
        f"  - {{name: {lie}, operator: block_follower, source: {{kind: always_on}}, "
        f"outputs: [hot_blocks, hot_transactions, hot_logs], "
        f"config: {{rpc: {lie}, engine: {engine}, start_block: 0, poll_seconds: 0.2}}}}"
        for lie, engine in FOLLOWED.items()
    ]
    names = [
        f"  - {{name: tip_{lie}_{table}, from: {{job: {lie}, output: hot_{table}}}}}"
        for lie in FOLLOWED
        for table in TABLES
    ]
    return write_jobs(path, "liars_tip", jobs, names)


def write_jobs(path: Path, dag: str, jobs: list[str], names: list[str]) -> Path:
    path.write_text("\n".join([f"name: {dag}", "jobs:", *jobs, "publish:", *names, ""]))
    return path


Rows = list[dict[str, Any]]


def read_rows(client: StackClient, dataset: str) -> Rows:
    """Return the visible rows of a dataset; none if it has no data yet."""
    try:
        answer = client.query(f"SELECT * FROM {dataset}")
    except RequestRejected as error:
        assert "no data yet" in str(error)
        return []
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def describe_row(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


class Reader:
    """Polls the datasets of liars while they run, one after another, and compares every row."""

    def __init__(self, stack: Stack, right: dict[str, Rows]) -> None:
        self._stack = stack
        self._right = {table: {*map(describe_row, rows)} for table, rows in right.items()}
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self.rows = 0

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._poll()
        except Exception as error:
            self._error = error

    def _poll(self) -> None:
        pools = [pool for lie in LIES for pool in (lie, f"{lie}_helped")]
        datasets = [(f"{pool}_{table}", table) for table in TABLES for pool in pools]
        with connect(self._stack.home) as client:
            for dataset, table in cycle(datasets):
                rows = read_rows(client, dataset)
                wrong = {*map(describe_row, rows)} - self._right[table]
                assert not wrong, f"a reader saw a wrong row of {dataset}: {wrong.pop()}"
                self.rows += len(rows)
                if self._ended.wait(0.2):  # polling takes processor time from Spark
                    return


@pytest.fixture(scope="module")
def right() -> dict[str, Rows]:
    return {table: as_json(rows) for table, rows in expected(new_chain(), 0, LAST).items()}


def sort_rows(rows: Rows) -> Rows:
    return sorted(
        rows,
        key=lambda row: (
            row["block_number"],
            row.get("transaction_index", 0),
            row.get("log_index", 0),
        ),
    )


def test_every_lie_is_refused_or_corrected(
    stack: Stack, right: dict[str, Rows], tmp_path: Path
) -> None:
    done = stack.trace("deploy", "--no-check", str(write_dag(tmp_path / "liars.yaml")))
    assert done.returncode == 0, done.stderr
    stack.json("trigger", "liars", "request", "--range", f"0-{LAST}")

    def ended() -> bool:
        tasks = [t for t in stack.tasks("liars") if t["job"].removesuffix("_helped") in LIES]
        waits = [t for t in tasks if t["status"] in ("Queued", "Running") or t["retry_at"]]
        # A node whose head lags has not finalized the blocks: this task waits.
        waits = [t for t in waits if t["error_code"] != "not_final"]
        return len(tasks) == 2 * len(LIES) and not waits

    with Reader(stack, right) as reader:
        eventually(ended, "all tasks have ended", within=800)
    tasks = {task["job"]: task for task in stack.tasks("liars")}
    outcomes: dict[str, list[str]] = {}
    with connect(stack.home) as client:
        for pool, table in product(tasks.keys() - {"request"}, TABLES):
            rows = sort_rows(read_rows(client, f"{pool}_{table}"))
            wanted = right[table] if tasks[pool]["status"] == "Completed" else []
            assert rows == sort_rows(wanted), f"{pool}: wrong {table}"
        metrics = client.http.get(f"{client.api_url}/metrics").text
    for outcome in ("corrected", "failed"):
        assert re.search(rf'trace_rejected_answers_total\{{outcome="{outcome}"\}} [1-9]', metrics)
    for lie, fault in LIES.items():
        pools = (lie, f"{lie}_helped")
        outcomes[lie] = [describe(tasks[pool]) for pool in pools]
        if not fault.heals:
            assert tasks[lie]["status"] != "Completed", f"{lie} was not noticed"
            assert "127.0.0.1:" in tasks[lie]["error_message"]
    # The endpoint with the lowest finalized block decides.
    assert outcomes.pop("head_lags") == ["waits", "waits"]
    assert {helped for _, helped in outcomes.values()} == {"right rows"}
    assert reader.rows, "the reader saw no row while the tasks ran"
    print_table(outcomes)


def test_a_follower_of_a_liar_shows_no_wrong_row(
    stack: Stack, right: dict[str, Rows], tmp_path: Path
) -> None:
    done = stack.trace("deploy", "--no-check", str(write_follower_dag(tmp_path / "liars_tip.yaml")))
    assert done.returncode == 0, done.stderr
    log = stack.home / "logs" / "worker.log"
    for lie in FOLLOWED:
        event = f'"job": "liars_tip.{lie}"'
        eventually(
            lambda event=event: any(
                "follower_waits" in line and event in line for line in log.read_text().splitlines()
            ),
            f"the follower of {lie} has refused an answer",
        )
        with connect(stack.home) as client:
            for table in TABLES:
                rows = read_rows(client, f"tip_{lie}_{table}")
                assert all(row in right[table] for row in rows)
    assert stack.trace("pause", "liars_tip").returncode == 0


def describe(task: dict[str, Any]) -> str:
    if task["status"] == "Completed":
        return "right rows"
    return "waits" if task["error_code"] == "not_final" else "refused"


def print_table(outcomes: dict[str, list[str]]) -> None:
    print("\n| what the provider does | Trace | with an honest endpoint |\n| --- | --- | --- |")
    for lie, (alone, helped) in outcomes.items():
        print(f"| {lie.replace('_', ' ')} | {alone} | {helped} |")
