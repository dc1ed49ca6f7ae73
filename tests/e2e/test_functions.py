"""User-defined functions on the whole stack: push, deploy, run in a sandbox, publish rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.waiting import eventually
from support.whole_stack import LAST_BLOCK, Stack, connect
from trace_etl.cli.client import RequestRejected, StackClient
from trace_etl.policy.bundles import build_bundle

EXAMPLE = Path(__file__).parents[2] / "examples" / "functions"


def test_the_example_names_the_hash_of_its_function() -> None:
    [job] = yaml.safe_load((EXAMPLE / "dag.yaml").read_text())["jobs"]
    assert job["udf"]["sha256"] == build_bundle(EXAMPLE / "busy_receivers").sha256


@pytest.mark.usefixtures("sandbox")
def test_a_function_reads_its_input_and_publishes_rows(stack: Stack, tmp_path: Path) -> None:
    stack.deploy("functions_input", tmp_path)
    stack.json("trigger", "functions_input", "request", "--range", f"0-{LAST_BLOCK}")
    pushed = stack.json("udf", "push", str(EXAMPLE / "busy_receivers"))
    assert stack.json("udf", "list", "--name", "busy_receivers")["items"] == [pushed]
    text = (EXAMPLE / "dag.yaml").read_text()
    dag = tmp_path / "functions.yaml"
    named = "{dataset: functions_input_receivers}}"
    chatty = push_chatty(stack, tmp_path / "chatty")
    text = text.replace(pushed["sha256"], chatty["sha256"])
    text = text.replace("{dataset: receivers}}", f"{named[:-1]}, name: receivers}}")
    dag.write_text(text.replace("runtime: ecs_udf_python", "runtime: small_functions"))
    deployed = stack.json("deploy", str(dag))
    assert [job["runtime"] for job in deployed["jobs"]] == ["small_functions"]
    listed = {item["name"]: item for item in stack.json("runtimes")["items"]}
    assert (listed["small_functions"]["workers"], listed["small_functions"]["slots"]) == (1, 1)
    assert (listed["ecs_platform"]["queue"], listed["ecs_rust"]["workers"]) == ("ecs_python", 0)

    def ended() -> bool:
        tasks = stack.tasks("functions")
        failed = [t for t in tasks if t["status"] == "Failed"]
        assert not failed, failed[0]["error_message"]
        return len([t for t in tasks if t["status"] == "Completed"]) == 8

    eventually(ended, "the function ran for every partition")
    task = stack.tasks("functions")[0]["task_id"]
    printed = stack.trace("logs", task, "--follow").stdout
    assert printed == "token: *** in 8 letters\nno \ufffd[31mcolour\n"
    [answer] = [json.loads(stack.trace("logs", task, "--json").stdout)]
    assert "".join(part["text"] for part in answer["parts"]).startswith("token: ***")
    with connect(stack.home) as client:
        busy = "SELECT count(*) FROM functions_input_receivers WHERE transfers >= 5"
        [[expected]] = client.query(busy)["rows"]
        assert expected > 0
        eventually(lambda: count_alerts(client) == [expected, 5], "the sink wrote all rows")


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
