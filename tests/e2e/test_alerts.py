"""The same alert rule in three languages on the whole stack, through a reorganisation."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chain.chain_rows import expected
from support.services.whole_stack import Stack, connect
from support.waiting import eventually
from trace_etl.cli.client import RequestRejected
from trace_etl.policy.bundles import build_bundle
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.node import find_node

EXAMPLE = Path(__file__).parents[2] / "examples" / "alerts"
AT_LEAST = 5 * 10**21
TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")


def test_the_example_names_the_hashes_of_its_functions() -> None:
    jobs = {job["name"]: job for job in yaml.safe_load((EXAMPLE / "dag.yaml").read_text())["jobs"]}
    for job, directory in (("in_python", "python"), ("in_typescript", "typescript")):
        assert jobs[job]["udf"]["sha256"] == build_bundle(EXAMPLE / directory).sha256


def documented_commands() -> str:
    """Return the commands in the comment at the top of the example."""
    lines = (EXAMPLE / "dag.yaml").read_text().splitlines()
    return "\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   "))


def test_the_documented_directories_have_the_names_of_the_bundles() -> None:
    pushed = re.search(r"for rule in (.*); do trace udf push", documented_commands())
    assert pushed
    jobs = yaml.safe_load((EXAMPLE / "dag.yaml").read_text())["jobs"]
    bundles = [job["udf"]["bundle"] for job in jobs if "udf" in job]
    assert [Path(directory).name for directory in pushed[1].split()] == bundles
    [compiler] = re.findall(r"^ *rustc .*?\.rs", documented_commands(), re.MULTILINE)
    assert compiler.strip() in (EXAMPLE / "native" / "src" / "main.rs").read_text()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of the bundles: those whose language this machine has."""
    found = {"python": EXAMPLE / "python"}
    try:
        find_node()
        found["typescript"] = EXAMPLE / "typescript"
    except SandboxUnavailable:
        pass
    if shutil.which("rustc") is not None:
        root = tmp_path_factory.mktemp("root")
        shutil.copytree(EXAMPLE / "native", root / "examples" / "alerts" / "native")
        build, _, _ = documented_commands().partition("for rule")
        build = build[build.index("(cd ") :]
        subprocess.run(["bash", "-e", "-c", build], cwd=root, check=True)
        found["native"] = root / "examples" / "alerts" / "native" / "target" / "native"
    return found


def test_the_program_in_rust_is_built_where_the_example_says(bundles: dict[str, Path]) -> None:
    if "native" not in bundles:
        pytest.skip("needs rustc")
    assert build_bundle(bundles["native"]).sha256
    assert os.access(bundles["native"] / "bootstrap", os.X_OK)


JOBS = {"python": "in_python", "typescript": "in_typescript", "native": "in_rust"}


def deploy_rules(stack: Stack, bundles: dict[str, Path], file: Path) -> None:
    """Push the bundles, and deploy the example without the rules that this machine cannot run."""
    dag = yaml.safe_load((EXAMPLE / "dag.yaml").read_text())
    absent = {job for language, job in JOBS.items() if language not in bundles}
    dag["jobs"] = [job for job in dag["jobs"] if job["name"] not in absent]
    dag["publish"] = [p for p in dag["publish"] if p["from"]["job"] not in absent]
    for language, directory in bundles.items():
        [job] = [job for job in dag["jobs"] if job["name"] == JOBS[language]]
        pushed = stack.json("udf", "push", str(directory))
        assert pushed["name"] == job["udf"]["bundle"]
        job["udf"]["sha256"] = pushed["sha256"]
    file.write_text(yaml.safe_dump(dag))
    deployed = stack.trace("deploy", "--no-check", str(file))
    assert deployed.returncode == 0, deployed.stderr


def query(stack: Stack, sql: str) -> list[list[Any]]:
    with connect(stack.home) as client:
        try:
            return client.query(sql)["rows"]
        except RequestRejected:  # before the first row
            return []


def expected_alerts(stack: Stack, first: int) -> set[str]:
    """Return the keys, without the rule, of the large ERC-20 transfers of the chain from a block on."""
    found: set[str] = set()
    for log in expected(stack.chain, first, stack.chain.head)["logs"]:
        is_fungible = log["topic0"] == TRANSFER and log["topic2"] and not log["topic3"]
        if (
            is_fungible
            and len(log["data"]) >= 32
            and int.from_bytes(log["data"][:32], "big") >= AT_LEAST
        ):
            found.add(f"0x{log['transaction_hash'].hex()}:{log['log_index']}")
    return found


def raised_alerts(stack: Stack, rule: str, first: int) -> list[str]:
    found = query(
        stack,
        "SELECT dedupe_key FROM alert_events"
        f" WHERE dedupe_key LIKE '{rule}:%' AND CAST(payload ->> 'block' AS bigint) >= {first}",
    )
    return sorted(key.removeprefix(f"{rule}:") for [key] in found)


@pytest.mark.usefixtures("sandbox")
def test_three_languages_raise_the_same_alerts_through_a_reorganisation(
    stack: Stack, bundles: dict[str, Path], tmp_path: Path
) -> None:
    deploy_rules(stack, bundles, tmp_path / "alerts.yaml")
    rules = [f"large-{'rust' if name == 'native' else name}" for name in bundles]
    eventually(lambda: any(t["job"] == "transfers" for t in stack.tasks("alerts")))
    first = stack.chain.head + 1
    stack.node.mine(8)

    def agree(wanted: set[str]) -> bool:
        failed = [t for t in stack.tasks("alerts") if t["status"] == "Failed" and not t["retry_at"]]
        assert not failed, failed[0]["error_message"]
        return all(raised_alerts(stack, rule, first) == sorted(wanted) for rule in rules)

    before = expected_alerts(stack, first)
    assert len(before) > 3
    eventually(lambda: agree(before), "every rule raised each alert once")

    stack.node.reorg(4)
    after = expected_alerts(stack, first)
    assert after != before
    # An alert that was raised stays. One of a block that is still there is not raised twice.
    eventually(lambda: agree(before | after), "every rule raised the alerts of the new blocks")
    [[payload]] = query(stack, "SELECT payload FROM alert_events LIMIT 1")
    assert "token" in str(payload)
