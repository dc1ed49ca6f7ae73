"""Kill the processes that run tasks, in a random order while they run: the rows equal an undisturbed run.

Each kind is killed once while 30 tasks run. `TRACE_CHAOS_ROUNDS=4` kills each four times while 200 tasks run,
and `TRACE_CHAOS_SEED` chooses another order.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.services.whole_stack import LAST_BLOCK, Stack, connect
from support.waiting import eventually
from trace_etl import landlock
from trace_etl.cli.client import RequestRejected
from trace_etl.lite.processes import process_tree

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = int(os.environ.get("TRACE_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("TRACE_CHAOS_SEED", "15"))
PARTITIONS = 6 if ROUNDS == 1 else 10 * ROUNDS
SIZE = -(-(LAST_BLOCK + 1) // PARTITIONS)
JOBS = ("ingest", "transfers", "receivers", "busy", "alert")
HAS_STARTER = os.geteuid() == 0 and landlock.version() > 0
KINDS = ("wrapper", "host", "jvm", "broker", "sandbox", *(["starter"] if HAS_STARTER else []))
DURING = {
    "host": ("receivers", "transfers"),
    "jvm": ("receivers", "ingest"),
    "starter": ("receivers", "transfers"),
    "broker": ("alert", "busy"),
    "sandbox": ("busy", "alert"),
}
"""The jobs during whose tasks each kind is killed, in turn: `sql`, `udf` and `alert_evaluate` among them."""
FOLLOWER = """
name: tip
defaults: {retry: {attempts: 100, delay: 1s, max_delay: 2s}}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_blocks]
    config: {start_block: 390, poll_seconds: 0.1}
"""
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
    config: {{size: {size}}}
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
    file.write_text(DAG.format(name=name, size=SIZE, **pushed))
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


def list_causes(stack: Stack, dag: str) -> set[str | None]:
    """Return why the attempts of all tasks that were tried again have ended."""
    again = [task["task_id"] for task in stack.tasks(dag) if task["attempt"] > 1]
    with connect(stack.home) as client:
        details = [client.get(f"/v1/tasks/{task_id}") for task_id in again]
    return {attempt["cause"] for detail in details for attempt in detail["attempts"]}


def find_victim(stack: Stack, kind: str) -> psutil.Process | None:
    """Return a process of a kind that runs now, if there is one."""
    try:
        functions = psutil.Process(stack.service("functions").pid or 0)
        worker = psutil.Process(stack.service("worker").pid or 0)
        if kind == "broker":  # the worker of functions runs it
            return functions
        if kind == "sandbox":
            tree = functions.children(recursive=True)
            return next((process for process in tree if process.name() == "bwrap"), None)
        tree = worker.children(recursive=True)
        if kind == "starter":
            return next(p for p in tree if "trace_etl.worker.hosts.host_start" in p.cmdline())
        hosts = [p for p in tree if "trace_etl.worker.hosts.host" in p.cmdline()]
        if kind == "host" or not hosts:
            return hosts[0] if hosts else None
        return next((p for p in hosts[0].children() if "java" in p.name()), None)
    except (psutil.NoSuchProcess, StopIteration):
        return None


def kill_one(stack: Stack, kind: str, job: str) -> bool:
    """Kill a process of a kind as soon as a task of a job runs. Returns False if none runs any more."""
    was_running = False

    def is_killed() -> bool:
        nonlocal was_running
        tasks = [task for task in stack.tasks("chaos") if task["job"] == job]
        was_running = any(task["status"] == "Running" for task in tasks)
        ended = [task for task in tasks if task["status"] == "Completed"]
        victim = find_victim(stack, kind)
        if not was_running or victim is None:
            return len(ended) == PARTITIONS
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        return True

    restarts = stack.service("worker").restarts
    eventually(is_killed, f"a {kind} is killed")
    if kind == "starter" and was_running:
        eventually(lambda: stack.service("worker").restarts > restarts, "the worker ended with it")
    return was_running


def kill_wrapper(stack: Stack) -> None:
    """Kill the worker while it runs a task and the follower. Its JVM ends, and another one is started."""

    def find_jvms(pid: int) -> list[psutil.Process]:
        return [p for p in process_tree.session_members(pid) if p.name() == "java"]

    def is_running(dag: str, *jobs: str) -> bool:
        return any(t["status"] == "Running" and t["job"] in jobs for t in stack.tasks(dag))

    def is_stopped_with_tasks() -> bool:
        pid = stack.service("worker").pid
        if pid is None:
            return False
        os.kill(pid, signal.SIGSTOP)  # so that no task ends before the worker is killed
        if find_jvms(pid) and is_running("chaos", *JOBS[:3]) and is_running("tip", "follow"):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    eventually(is_stopped_with_tasks, "a task and the follower run")
    before = stack.service("worker")
    assert before.pid is not None
    jvms = find_jvms(before.pid)
    os.kill(before.pid, signal.SIGKILL)
    eventually(
        lambda: not any(process_tree.is_running(jvm) for jvm in jvms), "the JVM of the worker ended"
    )
    eventually(lambda: stack.service("worker").restarts == before.restarts + 1, "it is restarted")
    assert stack.service("worker").pid != before.pid


@pytest.mark.usefixtures("sandbox")
def test_outputs_survive_the_death_of_every_process_that_runs_tasks(
    stack: Stack, tmp_path: Path
) -> None:
    total = PARTITIONS * len(JOBS)
    (tmp_path / "tip.yaml").write_text(FOLLOWER)
    assert stack.trace("deploy", "--no-check", str(tmp_path / "tip.yaml")).returncode == 0
    start(stack, "unharmed", tmp_path)
    eventually(lambda: count_completed(stack, "unharmed") == total, "the undisturbed run has ended")
    order = [*KINDS] * ROUNDS
    random.Random(SEED).shuffle(order)
    start(stack, "chaos", tmp_path)
    hit: set[str] = set()
    for number, kind in enumerate(order, start=1):
        reached = total * number // (len(order) + 2)
        eventually(lambda n=reached: count_completed(stack, "chaos") >= n, f"{reached} tasks ended")
        if kind == "wrapper":
            kill_wrapper(stack)
            continue
        job = DURING[kind][order[:number].count(kind) % 2 - 1]
        hit |= {job} if kill_one(stack, kind, job) else set()
    eventually(lambda: count_completed(stack, "chaos") == total, "all tasks have ended")

    wanted = read_rows(stack, "unharmed")
    assert all(wanted), [len(rows) for rows in wanted]
    eventually(lambda: read_rows(stack, "chaos") == wanted, "the rows equal the undisturbed run")
    assert hit >= {"receivers", "busy", "alert"}, "tasks of each operator ran during a kill"
    # Not `lease_expired`: their next attempts began long before their leases would have ended.
    assert "worker_gone" in list_causes(stack, "chaos")
    assert "worker_gone" in list_causes(stack, "tip")
    eventually(lambda: stack.tasks("tip")[0]["status"] == "Running", "the follower runs again")
    assert stack.trace("pause", "tip").returncode == 0  # the other tests need its processor time
