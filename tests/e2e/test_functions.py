"""User-defined functions on the whole stack: push, deploy, run in a sandbox, publish rows."""

from pathlib import Path

import yaml

from support.waiting import eventually
from support.whole_stack import LAST_BLOCK, Stack, connect
from trace_etl.cli.client import RequestRejected, StackClient
from trace_etl.policy.bundles import build_bundle

EXAMPLE = Path(__file__).parents[2] / "examples" / "functions"


def test_the_example_names_the_hash_of_its_function() -> None:
    [job] = yaml.safe_load((EXAMPLE / "dag.yaml").read_text())["jobs"]
    assert job["udf"]["sha256"] == build_bundle(EXAMPLE / "busy_receivers").sha256


def test_a_function_reads_its_input_and_publishes_rows(stack: Stack, tmp_path: Path) -> None:
    stack.deploy("functions_input", tmp_path)
    stack.json("trigger", "functions_input", "request", "--range", f"0-{LAST_BLOCK}")
    pushed = stack.json("udf", "push", str(EXAMPLE / "busy_receivers"))
    assert stack.json("udf", "list", "--name", "busy_receivers")["items"] == [pushed]
    text = (EXAMPLE / "dag.yaml").read_text()
    dag = tmp_path / "functions.yaml"
    named = "{dataset: functions_input_receivers}}"
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
    with connect(stack.home) as client:
        busy = "SELECT count(*) FROM functions_input_receivers WHERE transfers >= 5"
        [[expected]] = client.query(busy)["rows"]
        assert expected > 0
        eventually(lambda: count_alerts(client) == [expected, 5], "the sink wrote all rows")


def count_alerts(client: StackClient) -> list[int]:
    """Return the number of alerts and the least transfers of one."""
    try:
        return client.query("SELECT count(*), min(transfers) FROM busy_receivers")["rows"][0]
    except RequestRejected as error:
        assert "no data yet" in str(error)
        return []
