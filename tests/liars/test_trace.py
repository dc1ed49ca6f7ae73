"""A provider that lies or fails: through `trace deploy` and `trace trigger`, no wrong row is ever visible."""

import threading
from pathlib import Path
from typing import Any

import pytest

from support.chain_rows import as_json, expected
from support.lying_node import FAULTS, LAST
from support.waiting import eventually
from support.whole_stack import Stack, connect
from trace_etl.cli.client import RequestRejected
from trace_etl.devtools.devchain import DevChain

TABLES = ("blocks", "transactions", "logs")
# The tip is followed by both engines.
FOLLOWED = {"logs_dropped": "loop", "log_data_changed": "streaming"}


def write_dag(path: Path) -> Path:
    jobs, names = ["  - {name: request, source: {kind: manual}, outputs: [ranges]}"], list[str]()
    for lie in FAULTS:
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
    return write_jobs(path, "tip", jobs, names)


def write_jobs(path: Path, dag: str, jobs: list[str], names: list[str]) -> Path:
    path.write_text("\n".join([f"name: {dag}", "jobs:", *jobs, "publish:", *names, ""]))
    return path


def read_rows(stack: Stack, dataset: str) -> list[dict[str, Any]]:
    """Return the visible rows of a dataset; none if it has no data yet."""
    with connect(stack.home) as client:
        try:
            answer = client.query(f"SELECT * FROM {dataset} ORDER BY ALL")
        except RequestRejected as error:
            assert "no data yet" in str(error)
            return []
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


class Reader:
    """Polls datasets of liars while they run, and remembers every row that it sees."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.stop, self.polls = stack, threading.Event(), 0
        self.seen: dict[str, list[dict[str, Any]]] = {}
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop.set()
        self._thread.join()

    def _poll(self) -> None:
        watched = [f"{lie}_logs" for lie in ("logs_dropped", "a_third_of_logs_dropped_helped")]
        while not self.stop.is_set():
            for dataset in watched:
                self.seen.setdefault(dataset, []).extend(read_rows(self.stack, dataset))
                self.polls += 1
            self.stop.wait(0.5)


@pytest.fixture(scope="module")
def right(chain: DevChain) -> dict[str, list[dict[str, Any]]]:
    return {table: as_json(rows) for table, rows in expected(chain, 0, LAST).items()}


def sort_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        rows,
        key=lambda row: (
            row["block_number"],
            row.get("transaction_index", 0),
            row.get("log_index", 0),
        ),
    )


def test_every_lie_is_refused_or_corrected(
    stack: Stack, right: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    assert len(FAULTS) >= 25
    done = stack.trace("deploy", "--no-check", str(write_dag(tmp_path / "liars.yaml")))
    assert done.returncode == 0, done.stderr
    stack.json("trigger", "liars", "request", "--range", f"0-{LAST}")

    def ended() -> bool:
        tasks = [t for t in stack.tasks("liars") if t["job"].removesuffix("_helped") in FAULTS]
        waits = [t for t in tasks if t["status"] in ("Queued", "Running") or t["retry_at"]]
        # A node whose head lags has not finalized the blocks: this task waits.
        waits = [t for t in waits if t["error_code"] != "not_final"]
        return len(tasks) == 2 * len(FAULTS) and not waits

    with Reader(stack) as reader:
        eventually(ended, "all tasks have ended", within=800)
    tasks = {task["job"]: task for task in stack.tasks("liars")}
    outcomes: dict[str, list[str]] = {}
    for lie, fault in FAULTS.items():
        pools = (lie, f"{lie}_helped")
        for pool in pools:
            for table in TABLES:
                rows = sort_rows(read_rows(stack, f"{pool}_{table}"))
                wanted = right[table] if tasks[pool]["status"] == "Completed" else []
                assert rows == sort_rows(wanted), f"{pool}: wrong {table}"
        outcomes[lie] = [describe(tasks[pool]) for pool in pools]
        if not fault.heals:
            assert tasks[lie]["status"] != "Completed", f"{lie} was not noticed"
            assert "127.0.0.1:" in tasks[lie]["error_message"]
    # The endpoint with the lowest finalized block decides.
    assert outcomes.pop("head_lags") == ["waits", "waits"]
    assert {helped for _, helped in outcomes.values()} == {"right rows"}
    assert reader.polls > 5
    for dataset, rows in reader.seen.items():
        assert all(row in right["logs"] for row in rows), f"a reader saw a wrong row of {dataset}"
    print_table(outcomes)


def test_a_follower_of_a_liar_shows_no_wrong_row(
    stack: Stack, right: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    done = stack.trace("deploy", "--no-check", str(write_follower_dag(tmp_path / "tip.yaml")))
    assert done.returncode == 0, done.stderr
    log = stack.home / "logs" / "worker.log"
    for lie in FOLLOWED:
        event = f'"job": "tip.{lie}"'
        eventually(
            lambda event=event: any(
                "follower_waits" in line and event in line for line in log.read_text().splitlines()
            ),
            f"the follower of {lie} has refused an answer",
        )
        for table in TABLES:
            assert all(row in right[table] for row in read_rows(stack, f"tip_{lie}_{table}"))
    assert stack.trace("pause", "tip").returncode == 0


def describe(task: dict[str, Any]) -> str:
    if task["status"] == "Completed":
        return "right rows"
    return "waits" if task["error_code"] == "not_final" else "refused"


def print_table(outcomes: dict[str, list[str]]) -> None:
    print("\n| what the provider does | Trace | with an honest endpoint |\n| --- | --- | --- |")
    for lie, (alone, helped) in outcomes.items():
        print(f"| {lie.replace('_', ' ')} | {alone} | {helped} |")
