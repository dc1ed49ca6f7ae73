"""User-defined functions on the whole stack: push, deploy, run in a sandbox, publish rows."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.services.whole_stack import Stack, connect
from support.waiting import eventually
from trace_etl import landlock
from trace_etl.cli.client import RequestRejected, StackClient
from trace_etl.policy.bundles import build_bundle

EXAMPLE = Path(__file__).parents[2] / "examples" / "functions"


def test_the_example_names_the_hash_of_its_function() -> None:
    [job] = yaml.safe_load((EXAMPLE / "dag.yaml").read_text())["jobs"]
    assert job["udf"]["sha256"] == build_bundle(EXAMPLE / "busy_receivers").sha256


@pytest.mark.usefixtures("sandbox")
def test_a_function_reads_its_input_and_publishes_rows(calm: Stack, tmp_path: Path) -> None:
    stack = calm
    pushed = stack.json("udf", "push", str(EXAMPLE / "busy_receivers"))
    assert stack.json("udf", "list", "--name", "busy_receivers")["items"] == [pushed]
    text = (EXAMPLE / "dag.yaml").read_text()
    dag = tmp_path / "functions.yaml"
    named = "{dataset: calm_receivers}}"
    chatty = push_chatty(stack, tmp_path / "chatty")
    text = text.replace(pushed["sha256"], chatty["sha256"])
    text = text.replace("{dataset: receivers}}", f"{named[:-1]}, name: receivers}}")
    dag.write_text(text.replace("runtime: ecs_udf_python", "runtime: small_functions"))
    deployed = stack.json("deploy", str(dag))
    assert [job["runtime"] for job in deployed["jobs"]] == ["small_functions"]

    def ended() -> bool:
        tasks = stack.tasks("functions")
        failed = [t for t in tasks if t["status"] == "Failed"]
        assert not failed, failed[0]["error_message"]
        return len([t for t in tasks if t["status"] == "Completed"]) == 8

    eventually(ended, "the function ran for every partition")
    listed = {item["name"]: item for item in stack.json("runtimes")["items"]}
    assert (listed["small_functions"]["workers"], listed["small_functions"]["slots"]) == (1, 1)
    assert (listed["ecs_platform"]["queue"], listed["ecs_rust"]["workers"]) == ("ecs_python", 1)
    task = stack.tasks("functions")[0]["task_id"]
    printed = stack.trace("logs", task, "--follow").stdout
    assert printed == "token: *** in 8 letters\nno \ufffd[31mcolour\n"
    [answer] = [json.loads(stack.trace("logs", task, "--json").stdout)]
    assert "".join(part["text"] for part in answer["parts"]).startswith("token: ***")
    with connect(stack.home) as client:
        busy = "SELECT count(*) FROM calm_receivers WHERE transfers >= 5"
        [[expected]] = client.query(busy)["rows"]
        assert expected > 0
        eventually(lambda: count_alerts(client) == [expected, 5], "the sink wrote all rows")


RULE_TS = """
import type { FunctionContext } from "trace-etl";

export const handler = async (event: unknown, { task }: FunctionContext) => {
  const busy = await task.query("SELECT token, receiver FROM receivers WHERE transfers >= ?", [
    task.config.at_least,
  ]);
  await task.publish(busy.map((row) => ({ id: `${row.token}-${row.receiver}-${task.scope.start}` })));
};
"""
RULE_LAMBDA = """
from trace_etl.sdk import Task

calls = 0

def handler(event, context):
    global calls
    calls += 1
    print("call", calls, "with", event["capability_token"])
    task = Task(event)
    busy = task.query("SELECT token, receiver FROM receivers WHERE transfers >= ?", [task.config["at_least"]])
    task.publish({"id": f"{row['token']}-{row['receiver']}-{task.scope['start']}"} for row in busy)
"""
OTHERS = """
name: other_functions
jobs:
{jobs}
publish:
{datasets}
"""
JOB = """
  - name: {name}
    operator: udf
    runtime: {runtime}
    inputs: [{{from: {{dataset: calm_receivers}}, name: receivers}}]
    outputs: [alerts]
    update_strategy: append
    unique_key: [id]
    config: {{at_least: 5}}
    udf: {{bundle: {name}, sha256: "{sha256}", handler: rule.handler}}
"""
DATASET = """
  - name: busy_{name}
    from: {{job: {name}}}
    write_mode: buffered
    schema: [{{name: id, type: string, nullable: false}}]
"""


@pytest.mark.usefixtures("sandbox")
def test_functions_in_node_and_on_lambda_publish_the_same_rows(calm: Stack, tmp_path: Path) -> None:
    stack = calm
    functions = {
        "typed": ("ecs_udf_ts", "rule.ts", RULE_TS),
        "warm": ("lambda", "rule.py", RULE_LAMBDA),
    }
    jobs, datasets = "", ""
    for name, (runtime, file, code) in functions.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(code)
        pushed = stack.json("udf", "push", str(tmp_path / name))
        jobs += JOB.format(name=name, runtime=runtime, sha256=pushed["sha256"])
        datasets += DATASET.format(name=name)
    dag = tmp_path / "others.yaml"
    dag.write_text(OTHERS.format(jobs=jobs, datasets=datasets))
    stack.json("deploy", str(dag))

    def ended() -> bool:
        tasks = stack.tasks("other_functions")
        failed = [t for t in tasks if t["status"] == "Failed"]
        assert not failed, failed[0]["error_message"]
        return len([t for t in tasks if t["status"] == "Completed"]) == 16

    eventually(ended, "both functions ran for every partition")
    with connect(stack.home) as client:
        [[expected]] = client.query("SELECT count(*) FROM calm_receivers WHERE transfers >= 5")[
            "rows"
        ]
        for name in functions:
            eventually(lambda name=name: count_ids(client, name) == expected, f"rows of {name}")
    event = {
        "config": {"at_least": 5},
        "scope": {"start": 0},
        "inputs": [{"name": "receivers", "sql": "SELECT * FROM calm_receivers"}],
        "outputs": [{"name": "alerts"}],
    }
    (tmp_path / "event.json").write_text(json.dumps(event))
    tried = stack.json(
        "udf", "test", str(tmp_path / "typed"), "--event", str(tmp_path / "event.json")
    )
    assert (tried["status"], len(tried["published"]["alerts"])) == ("Completed", expected)
    warm = [t["task_id"] for t in stack.tasks("other_functions") if t["job"] == "warm"]
    with connect(stack.home) as client:
        detail = client.get(f"/v1/tasks/{warm[0]}")
    assert [attempt["isolation"] for attempt in detail["attempts"]] == ["lambda"]
    printed = [stack.trace("logs", task).stdout for task in warm[:2]]
    assert all(text.startswith("call ") and text.endswith(" with ***\n") for text in printed)


FEED = """
from trace_etl.sdk import Task

def handler(event, context):
    task = Task(event)
    print("started by", task.parameters["scheduled_time"])
    task.emit([{"start": 0, "end": 9}, {"start": 10, "end": 19}])
"""
FEED_NODE = """
const { Task } = require("trace-etl");
exports.handler = async (event) => {
  const task = new Task(event);
  await task.emit([{ start: task.parameters.payload.from, end: 29 }], "requests");
};
"""
FEEDS = """
name: feeds
jobs:
  - name: hourly
    source: {{kind: cron, schedule: "0 3 1 1 *"}}
    operator: udf_source
    outputs: [requests]
    udf: {{bundle: hourly, sha256: {hourly}, handler: rule.handler}}
  - name: asked
    source: {{kind: manual}}
    operator: udf_source
    runtime: lambda
    outputs: [requests]
    udf: {{bundle: asked, sha256: {asked}, handler: rule.handler}}
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: hourly}}}}, {{from: {{job: asked}}, name: more}}]
    outputs: [ranges]
    config: {{size: 10}}
"""


@pytest.mark.usefixtures("sandbox")
def test_functions_on_lambda_are_sources_that_start_other_jobs(
    stack: Stack, tmp_path: Path
) -> None:
    hashes: dict[str, str] = {}
    for name, file, code in (("hourly", "rule.py", FEED), ("asked", "rule.js", FEED_NODE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(code)
        hashes[name] = stack.json("udf", "push", str(tmp_path / name))["sha256"]
    dag = tmp_path / "feeds.yaml"
    dag.write_text(FEEDS.format(**hashes))
    stack.json("deploy", str(dag))
    tick = stack.json("trigger", "feeds", "hourly", "--at", "2026-01-01T03:00:00Z", "--wait")
    stack.json("trigger", "feeds", "asked", "--payload", '{"from": 20}', "--wait")
    tasks = stack.tasks("feeds")
    runs = [t for t in tasks if t["job"] != "split"]
    assert {t["runtime"] for t in runs} == {"lambda"} and len(runs) == 2
    split = {t["partition_key"]: t["status"] for t in tasks if t["job"] == "split"}
    assert split == dict.fromkeys(["0-9", "10-19", "20-29"], "Completed")
    assert stack.trace("logs", tick["task_id"]).stdout == "started by 2026-01-01T03:00:00Z\n"


CURIOUS = """
const fs = require("node:fs");
const os = require("node:os");
const { Task } = require("trace-etl");

function attempt(action) {
  try { return action(); } catch (error) { return error.code; }
}
exports.handler = async (event) => {
  const task = new Task(event);
  const { home, pid, secret } = task.parameters.payload;
  console.log(JSON.stringify({
    uid: process.getuid(),
    host: os.hostname(),
    environment: Object.keys(process.env).filter((name) => name.startsWith("TRACE_")).sort(),
    stat: attempt(() => fs.statSync("/etc/passwd").size > 0),
    read: attempt(() => fs.readFileSync("/etc/passwd").length),
    home: attempt(() => fs.readdirSync(home)),
    secret: attempt(() => fs.readFileSync(secret)),
    memory: attempt(() => fs.openSync(`/proc/${pid}/mem`)),
    signal: attempt(() => process.kill(pid, 0)),
    write: attempt(() => fs.writeFileSync("/var/tmp/left", "x")),
  }));
  fs.writeFileSync(`${os.tmpdir()}/own`, "x");
  await task.emit([{ start: 0, end: 9 }]);
};
"""
OPEN = """
name: without_namespaces
jobs:
  - name: look
    source: {{kind: manual}}
    operator: udf_source
    runtime: open_functions
    outputs: [requests]
    udf: {{bundle: curious, sha256: {sha256}, handler: rule.handler}}
  - name: split
    operator: range_splitter
    inputs: [{{from: {{job: look}}}}]
    outputs: [ranges]
    config: {{size: 10}}
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not landlock.version(), reason="`reduced` needs root and Landlock"
)
def test_a_function_without_namespaces_runs_in_the_stack_and_reaches_only_its_task(
    stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "rule.js").write_text(CURIOUS)
    sha256 = stack.json("udf", "push", str(tmp_path), "--name", "curious")["sha256"]
    (tmp_path / "dag.yaml").write_text(OPEN.format(sha256=sha256))
    stack.json("deploy", str(tmp_path / "dag.yaml"))
    worker = stack.service("functions")
    payload = {
        "home": str(stack.home),
        "pid": worker.pid,
        "secret": str(stack.home / "tokens" / "user.jwt"),
    }
    arguments = ("look", "--payload", json.dumps(payload), "--wait")
    task = stack.json("trigger", "without_namespaces", *arguments)["task_id"]
    with connect(stack.home) as client:
        detail = client.get(f"/v1/tasks/{task}")
    assert [attempt["isolation"] for attempt in detail["attempts"]] == ["reduced"]
    [split] = [t for t in stack.tasks("without_namespaces") if t["job"] == "split"]
    assert (split["partition_key"], split["status"]) == ("0-9", "Completed")
    seen = json.loads(stack.trace("logs", task).stdout)
    assert seen.pop("uid") in range(64700, 65200)
    names = ["EVENT_FILE", "SOCKET", "TASK_CAPABILITY_TOKEN"]
    assert seen.pop("environment") == [f"TRACE_{name}" for name in names]
    refused = dict.fromkeys(("read", "home", "secret", "memory", "write"), "EACCES")
    # What this isolation does not hide: docs/how-to/functions.md lists it.
    assert seen == {**refused, "host": socket.gethostname(), "stat": True, "signal": "EPERM"}


def count_ids(client: StackClient, name: str) -> int:
    try:
        return client.query(f"SELECT count(*) FROM busy_{name}")["rows"][0][0]
    except RequestRejected as error:
        assert "no data yet" in str(error)
        return 0


def push_chatty(stack: Stack, directory: Path) -> dict[str, Any]:
    """Push the example with lines that print its token and control the terminal."""
    directory.mkdir()
    code = (EXAMPLE / "busy_receivers" / "rule.py").read_text()
    token = 'os.environ["TRACE_TASK_CAPABILITY_TOKEN"]'
    lines = [
        "import os",
        f'print("token:", {token}, "in 8 letters")',
        'print("no \\x1b[31mcolour")',
    ]
    (directory / "rule.py").write_text(code + "\n" + "\n".join(lines) + "\n")
    return stack.json("udf", "push", str(directory), "--name", "busy_receivers")


def count_alerts(client: StackClient) -> list[int]:
    """Return the number of alerts and the least transfers of one."""
    try:
        return client.query("SELECT count(*), min(transfers) FROM busy_receivers")["rows"][0]
    except RequestRejected as error:
        assert "no data yet" in str(error)
        return []
