"""The whole stack on S3 gives the rows of the chain, also when restored, and writes its keys nowhere."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from support.chain_rows import as_json, expected
from support.ministack import REGION, AwsKey, Ministack
from support.waiting import eventually
from support.whole_stack import connect
from trace_etl import client as trace_client
from trace_etl.cli.client import RequestRejected
from trace_etl.devtools.devchain.chain.devchain import DevChain
from trace_etl.devtools.devchain.rpc.server import start_server
from trace_etl.lite import stack as lite
from trace_etl.lite.credentials.keys import LOCAL_ORG
from trace_etl.lite.home import Home

TRACE = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "dag.yaml"
BLOCKS, SIZE = 60, 20
# A follower, its compaction to Parquet, and a buffered dataset that the sink writes.
FOLLOW = """
name: follow
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    outputs: [hot_logs]
    config: {rpc: default, start_block: 0}
  - name: wide
    operator: range_aggregator
    inputs: [{from: {job: follow, output: hot_logs}}]
    outputs: [ranges]
    config: {size: 20}
  - name: compact
    operator: parquet_compact
    inputs: [{from: {job: wide}}, {from: {job: follow, output: hot_logs}}]
    outputs: [logs]
    config: {size: 20, finality_depth_blocks: 0, rpc: default}
    max_attempts: 20
  - name: busy
    operator: sql
    inputs: [{from: {job: compact}}]
    outputs: [busy]
    update_strategy: append
    unique_key: [block_number]
    config: {sql: "SELECT block_number, count(*) AS n FROM logs GROUP BY block_number"}
publish:
  - {name: compacted, from: {job: compact}}
  - name: busy_blocks
    from: {job: busy}
    write_mode: buffered
    schema: [{name: block_number, type: long, nullable: false}, {name: n, type: long}]
"""
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
MAX_AMOUNT = 2**120  # the quickstart leaves larger amounts out of its sums
ORDERS = {
    "blocks": "block_number",
    "transactions": "block_number, transaction_index",
    "logs": "block_number, log_index",
    "receivers": "ALL",
    "compacted": "block_number, log_index",
    "busy_blocks": "block_number",
}


@dataclass
class RunningStack:
    """A home, and the command line for it."""

    home: Path
    environment: Mapping[str, str]

    def trace(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment, "TRACE_HOME": str(self.home)}
        environment["TRACE_RETRY_INITIAL"] = "PT1S"
        return subprocess.run([*TRACE, *words], capture_output=True, text=True, env=environment)

    def run(self, *words: str) -> str:
        done = self.trace(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def query(self, sql: str) -> list[dict[str, Any]]:
        with connect(self.home) as stack:
            answer = stack.query(sql)
        names = [column["name"] for column in answer["columns"]]
        return [dict(zip(names, row, strict=True)) for row in answer["rows"]]

    def tasks(self, dag: str) -> list[dict[str, Any]]:
        with connect(self.home) as stack:
            return stack.get_all("/v1/tasks", dag=dag)["items"]

    def count(self, dataset: str) -> int:
        """Count blocks; 0 before the dataset has data."""
        try:
            return self.query(f"SELECT count(DISTINCT block_number) AS n FROM {dataset}")[0]["n"]
        except RequestRejected:
            return 0


def collect(stack: RunningStack, url: str, directory: Path, *words: str) -> dict[str, list[Any]]:
    """Run both DAGs on a new stack and return the rows of all datasets."""
    stack.run("up", "--detach", "--rpc-url", url, *words)
    follow, quickstart = directory / "follow.yaml", directory / "quickstart.yaml"
    follow.write_text(FOLLOW)
    quickstart.write_text(QUICKSTART.read_text().replace("size: 500", f"size: {SIZE}"))
    for dag in (follow, quickstart):
        stack.run("deploy", "--no-check", str(dag))
    stack.run("trigger", "quickstart", "request", "--range", f"0-{BLOCKS - 1}")
    eventually(lambda: _is_done(stack), "all tasks of the quickstart are completed", within=300)
    assert stack.count("blocks") == BLOCKS
    blocks_with_logs = stack.count("logs")
    for dataset in ("compacted", "busy_blocks"):
        eventually(
            lambda d=dataset: stack.count(d) == blocks_with_logs,
            f"{dataset} is complete",
            within=300,
        )
    stack.run("storage", "sweep")
    with trace_client.connect(stack.home) as client:
        for name in ("logs", "receivers"):
            rows = client.query(f"FROM {name} ORDER BY ALL").polars()
            assert_frame_equal(
                client.scan(name).select(rows.columns).collect().sort("*"), rows.sort("*")
            )
    return {
        name: stack.query(f"SELECT * FROM {name} ORDER BY {order}")
        for name, order in ORDERS.items()
    }


def _is_done(stack: RunningStack) -> bool:
    tasks = stack.tasks("quickstart")
    receivers = [t for t in tasks if t["job"] == "receivers" and t["status"] == "Completed"]
    return len(receivers) == BLOCKS // SIZE


def make_key(aws: Ministack, bucket: str, prefix: str) -> AwsKey:
    """Create a user that may use one prefix of the bucket."""
    arn = f"arn:aws:s3:::{bucket}"
    actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    return aws.make_user(
        {"Effect": "Allow", "Action": actions, "Resource": f"{arn}/{prefix}/{LOCAL_ORG}/*"},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": arn},
    )


def make_environment(aws: Ministack, key: AwsKey) -> dict[str, str]:
    s3 = {**key.environment, "TRACE_S3_REGION": REGION, "TRACE_S3_ENDPOINT": aws.url}
    return {**s3, "TRACE_S3_ENCRYPTION": "AES256"}


def check_certificates(stack: RunningStack) -> None:
    """Compare every object and row with the certificates: of an ingest, a derived dataset, a compaction."""
    for name in ("logs", "receivers", "compacted"):
        report = json.loads(stack.run("verify", name, "--json"))
        assert report["partitions"] > 0 and report["rows"] > 0, name


def check_damage(aws: Ministack, stack: RunningStack, bucket: str) -> None:
    """Change one byte of an object and delete another one: `trace verify` names both."""
    with connect(stack.home) as client:
        first, second, *_ = client.get_all("/v1/datasets/blocks/certificates")["items"]
    keys = [
        f"restored/{LOCAL_ORG}/{c['storage_ref']['prefix']}{c['files'][0]['name']}"
        for c in (first, second)
    ]
    content = bytearray(aws.call("s3", "get_object", Bucket=bucket, Key=keys[0])["Body"])
    content[len(content) // 2] ^= 1
    aws.call("s3", "put_object", Bucket=bucket, Key=keys[0], Body=bytes(content))
    aws.call("s3", "delete_object", Bucket=bucket, Key=keys[1])
    found = stack.trace("verify", "blocks", "--json")
    problems = json.loads(found.stdout)["problems"]
    assert found.returncode == 1
    assert {(p["partition_key"], p["check"]) for p in problems if p["check"] == "file"} == {
        (first["partition_key"], "file"),
        (second["partition_key"], "file"),
    }
    assert "SHA-256" in problems[0]["problem"] and "missing" in problems[-1]["problem"]


def check_backup(
    aws: Ministack, stack: RunningStack, bucket: str, rows: dict[str, list[Any]]
) -> None:
    """Save a stack on S3, restore it under another prefix and key, and compare every dataset."""
    check_certificates(stack)
    backup = stack.home.with_name("backup.tar")
    saved = json.loads(stack.run("backup", str(backup), "--json"))
    assert saved["objects"] > 0
    key = make_key(aws, bucket, "restored")  # the restored stack cannot read the original objects
    other = RunningStack(stack.home.with_name("restored"), make_environment(aws, key))
    restore = ("restore", str(backup), "--json", "--objects-url")
    refused = other.trace(*restore, f"s3://{bucket}/data/{{org_id}}")
    assert refused.returncode == 1 and "errors" in json.loads(refused.stderr)
    restored = json.loads(other.run(*restore, f"s3://{bucket}/restored/{{org_id}}"))
    assert restored["datasets"] == saved["datasets"] and restored["tables"] == saved["tables"]
    try:
        other.run("up", "--detach")
        for name, order in ORDERS.items():
            assert other.query(f"SELECT * FROM {name} ORDER BY {order}") == rows[name], name
        check_certificates(other)
        check_damage(aws, other, bucket)
    finally:
        lite.purge(Home(other.home))


def compute_rows(chain: DevChain) -> dict[str, list[dict[str, Any]]]:
    """Compute the rows of every dataset from the chain, without the platform."""
    rows = {name: as_json(some) for name, some in expected(chain, 0, BLOCKS - 1).items()}
    counts = Counter(log["block_number"] for log in rows["logs"])
    busy = [
        {"org_id": LOCAL_ORG, "block_number": number, "n": n}
        for number, n in sorted(counts.items())
    ]
    return {**rows, "compacted": rows["logs"], "busy_blocks": busy}


def sum_transfers(logs: list[dict[str, Any]]) -> Counter[tuple[int, str, str]]:
    """Sum the ERC-20 transfers of each partition by token and receiver."""
    found: Counter[tuple[int, str, str]] = Counter()
    for log in logs:
        is_transfer = log["topic0"] == TRANSFER and not log["topic3"] and log["n_data_bytes"] == 32
        if is_transfer and (amount := int(log["data"], 16)) < MAX_AMOUNT:
            found[log["block_number"] // SIZE, log["address"], "0x" + log["topic2"][26:]] += amount
    return found


def test_a_stack_on_s3_gives_the_rows_of_the_chain_and_is_saved_and_restored(
    aws: Ministack, tmp_path: Path
) -> None:
    bucket = aws.make_bucket()
    key = make_key(aws, bucket, "data")
    chain = DevChain(seed=11, length=BLOCKS)
    home = tmp_path / "s3"
    stack = RunningStack(home, make_environment(aws, key))
    url = f"s3://{bucket}/data/{{org_id}}"
    try:
        with start_server(chain, "127.0.0.1", 0) as server:
            rows = collect(stack, server.url, tmp_path, "--objects-url", url)
            check_backup(aws, stack, bucket, rows)
        stack.trace("down")
        computed = compute_rows(chain)
        for name in ORDERS.keys() - {"receivers"}:
            assert rows[name] == computed[name] != [], name
        sums = sorted(amount for amount in sum_transfers(computed["logs"]).values())
        assert sums and sorted(int(row["amount"] or 0) for row in rows["receivers"]) == sums
        objects = aws.call("s3", "list_objects_v2", Bucket=bucket, Prefix="data/")["Contents"]
        assert {item["Key"].split("/")[1] for item in objects} == {LOCAL_ORG}
        assert not list((home / "objects").rglob("*.parquet"))
        head = aws.call("s3", "head_object", Bucket=bucket, Key=objects[0]["Key"])
        assert head["ServerSideEncryption"] == "AES256"
        _require_no_keys(home, key)
    finally:
        lite.purge(Home(home))


def _require_no_keys(home: Path, key: AwsKey) -> None:
    """No file of the stack has a key: logs, state, plans, errors, settings."""
    searched = 0
    for file in (path for path in home.rglob("*") if path.is_file() and not path.is_symlink()):
        content = file.read_bytes()
        assert key.secret_key.encode() not in content, file
        assert key.access_key.encode() not in content, file
        searched += 1
    assert searched > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TRACE_S3_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached: check TRACE_S3_ENDPOINT"),
        ({"AWS_SECRET_ACCESS_KEY": "x" * 40}, "check AWS_ACCESS_KEY_ID"),
        ({"TRACE_S3_REGION": "us-west-2"}, "set TRACE_S3_REGION"),
        ({"TRACE_S3_KMS_KEY_ID": "k"}, "TRACE_S3_KMS_KEY_ID needs TRACE_S3_ENCRYPTION=aws:kms"),
    ],
)
def test_trace_up_says_what_is_wrong(
    aws: Ministack, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    bucket = aws.make_bucket()
    key = aws.make_user({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})
    environment = {**key.environment, "TRACE_S3_REGION": REGION, "TRACE_S3_ENDPOINT": aws.url}
    stack = RunningStack(tmp_path / "home", {**environment, **change})
    failed = stack.trace("up", "--detach", "--objects-url", f"s3://{bucket}/x")
    assert failed.returncode != 0
    assert message in failed.stderr
    assert key.access_key not in failed.stderr and key.secret_key not in failed.stderr
