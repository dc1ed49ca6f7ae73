"""Kill the processes that run tasks at random while 200 tasks run: the rows equal an undisturbed run."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.services.whole_stack import LAST_BLOCK, Stack, connect
from support.waiting import eventually
from trace_etl.cli.client import RequestRejected

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTITIONS = 40
JOBS = ("ingest", "transfers", "receivers", "busy", "alert")
KINDS = ("wrapper", "host", "jvm", "broker", "sandbox")
KILLS = 12
DAG = """
name: {name}
defaults:
  heartbeat_timeout: 6s
  retry: {{attempts: 30, delay: 1s, max_delay: 2s}}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: request}}}}]
    outputs: [ranges]
    config: {{size: 10}}
  - name: ingest
    operator: cryo_ingest
    inputs: [{{from: {{job: split}}}}]
    outputs: [logs]
  - name: transfers
    operator: erc20_transfers
    inputs: [{{from: {{job: ingest}}}}]
    outputs: [transfers]
  - name: receivers
    operator: sql
    inputs: [{{from: {{job: transfers}}}}]
    outputs: [receivers]
    config:
      sql: >
        SELECT token, to_address AS receiver, min(block_number) AS first, count(*) AS transfers
          FROM transfers GROUP BY ALL
  - name: busy
    operator: udf
    runtime: ecs_udf_python
    inputs: [{{from: {{job: receivers}}}}]
    outputs: [busy]
    update_strategy: append
    unique_key: [alert_id]
    config: {{at_least: 2}}
    udf: {{bundle: busy_receivers, sha256: {busy}, handler: rule.handler}}
  - name: alert
    operator: alert_evaluate
    runtime: ecs_udf_python
    inputs: [{{from: {{job: transfers}}}}]
    outputs: [alerts]
    update_strategy: append
    unique_key: [dedupe_key]
    config: {{rule: {name}, at_least: 3.0e+21}}
    udf: {{bundle: large_transfers, sha256: {large}, handler: rule.handler}}
publish:
  - {{name: {name}_logs, from: {{job: ingest}}}}
  - {{name: {name}_transfers, from: {{job: transfers}}}}
  - {{name: {name}_receivers, from: {{job: receivers}}}}
  - {{name: alert_events, from: {{job: alert}}, write_mode: buffered}}
  - name: {name}_busy
    from: {{job: busy}}
    write_mode: buffered
    schema:
      - {{name: alert_id, type: string, nullable: false}}
      - {{name: token, type: string}}
      - {{name: receiver, type: string}}
      - {{name: transfers, type: long}}
"""
QUERIES = (
    "SELECT * FROM {name}_logs ORDER BY block_number, log_index",
    "SELECT * FROM {name}_transfers ORDER BY block_number, log_index",
    "SELECT * FROM {name}_receivers ORDER BY ALL",
    "SELECT alert_id, token, receiver, transfers FROM {name}_busy ORDER BY ALL",
    "SELECT replace(dedupe_key, '{name}:', ''), severity, payload FROM alert_events"
    " WHERE dedupe_key LIKE '{name}:%' ORDER BY ALL",
)


def start(stack: Stack, name: str, directory: Path) -> None:
    bundles = {"busy": EXAMPLES / "functions/busy_receivers", "large": EXAMPLES / "alerts/python"}
    names = {"busy": "busy_receivers", "large": "large_transfers"}
    pushed = {
        key: stack.json("udf", "push", str(path), "--name", names[key])["sha256"]
        for key, path in bundles.items()
    }
    file = directory / f"{name}.yaml"
    file.write_text(DAG.format(name=name, **pushed))
    deployed = stack.trace("deploy", "--no-check", str(file))
    assert deployed.returncode == 0, deployed.stderr
    with connect(stack.home) as client:
        client.post("/v1/triggers", {"dag": name, "job": "request", "start": 0, "end": LAST_BLOCK})


def count_completed(stack: Stack, name: str) -> int:
    tasks = [task for task in stack.tasks(name) if task["job"] in JOBS]
    failed = [t for t in tasks if t["status"] == "Failed" and t["retry_at"] is None]
    assert not failed, failed[0]["error_message"]
    return len([task for task in tasks if task["status"] == "Completed"])


def read_rows(stack: Stack, name: str) -> list[Any]:
    """Return the rows of all datasets; of those without data yet, nothing."""
    found: list[Any] = []
    with connect(stack.home) as client:
        for sql in QUERIES:
            try:
                found.append(client.query(sql.format(name=name))["rows"])
            except RequestRejected as error:
                assert "no data yet" in str(error)
                found.append([])
    return found


def find_victim(stack: Stack, kind: str) -> psutil.Process | None:
    """Return a process of a kind that runs now, if there is one."""
    try:
        functions = psutil.Process(stack.service("functions").pid or 0)
        worker = psutil.Process(stack.service("worker").pid or 0)
        if kind in ("wrapper", "broker"):  # the broker is in the worker of functions
            return worker if kind == "wrapper" else functions
        if kind == "sandbox":
            tree = functions.children(recursive=True)
            return next((process for process in tree if process.name() == "bwrap"), None)
        hosts = [p for p in worker.children() if "trace_etl.worker.hosts.host" in p.cmdline()]
        if kind == "host" or not hosts:
            return hosts[0] if hosts else None
        return next((p for p in hosts[0].children() if "java" in p.name()), None)
    except (psutil.NoSuchProcess, StopIteration):
        return None


def kill_one(stack: Stack, kind: str) -> None:
    """Kill a process of a kind as soon as one runs."""

    def is_killed() -> bool:
        victim = find_victim(stack, kind)
        if victim is None or victim.pid == 0:
            return count_completed(stack, "chaos") == PARTITIONS * len(JOBS)  # none will run
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        return True

    eventually(is_killed, f"a {kind} is killed")


@pytest.mark.usefixtures("sandbox")
def test_outputs_survive_the_death_of_every_process_that_runs_tasks(
    stack: Stack, tmp_path: Path
) -> None:
    total = PARTITIONS * len(JOBS)
    start(stack, "unharmed", tmp_path)
    eventually(lambda: count_completed(stack, "unharmed") == total, "the undisturbed run has ended")
    choose = random.Random(15)
    order = [*KINDS, *KINDS, *choose.sample(KINDS, KILLS - 2 * len(KINDS))]
    choose.shuffle(order)
    start(stack, "chaos", tmp_path)
    for number, kind in enumerate(order, start=1):
        reached = total * number // (KILLS + 2)
        eventually(lambda n=reached: count_completed(stack, "chaos") >= n, f"{reached} tasks ended")
        kill_one(stack, kind)
    eventually(lambda: count_completed(stack, "chaos") == total, "all tasks have ended")

    wanted = read_rows(stack, "unharmed")
    assert all(wanted), [len(rows) for rows in wanted]
    eventually(lambda: read_rows(stack, "chaos") == wanted, "the rows equal the undisturbed run")
    attempts = Counter(task["attempt"] for task in stack.tasks("chaos"))
    assert max(attempts) > 1, "no task was disturbed"
