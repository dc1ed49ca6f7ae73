"""The whole stack on S3 gives the rows of the chain, also when restored, and writes its keys nowhere."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
from polars.testing import assert_frame_equal

from support.chain.chain_rows import as_json, expected
from support.services.ministack import REGION, AwsError, AwsKey, Ministack
from support.services.whole_stack import connect
from support.waiting import eventually
from trace_etl import client as trace_client
from trace_etl.cli.client import RequestRejected
from trace_etl.devtools.devchain.chain.devchain import DevChain
from trace_etl.devtools.devchain.rpc.server import start_server
from trace_etl.lite import stack as lite
from trace_etl.lite.credentials.keys import LOCAL_ORG
from trace_etl.lite.home import Home
from trace_etl.objects.s3_options import read_profile

TRACE = [sys.executable, "-c", "from trace_etl.cli.main import main; main()"]
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "dag.yaml"
TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
BLOCKS, SIZE = 60, 20
# A follower, its compaction to Parquet, a buffered dataset that the sink writes, and rows that a check refuses.
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
  - name: refused
    operator: sql
    inputs: [{from: {job: compact}}]
    outputs: [refused]
    max_attempts: 1
    config: {sql: "SELECT block_number FROM logs"}
    checks: [{rows: {max: 1}}]
publish:
  - {name: compacted, from: {job: compact}}
  - name: busy_blocks
    from: {job: busy}
    write_mode: buffered
    schema: [{name: block_number, type: long, nullable: false}, {name: n, type: long}]
"""
# The loop deletes nothing, so that `trace storage sweep` does, at once.
SWEEPS = {
    "TRACE_SWEEP_STORAGE": "false",
    "TRACE_STAGING_RETENTION": "PT0S",
    "TRACE_BATCH_RETENTION": "PT0S",
}
ORDERS = {
    "blocks": "block_number",
    "transactions": "block_number, transaction_index",
    "logs": "block_number, log_index",
    "receivers": "token, receiver, transfers, amount",
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

    def read_all(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of all datasets."""
        return {
            name: self.query(f"SELECT * FROM {name} ORDER BY {order}")
            for name, order in ORDERS.items()
        }

    def tasks(self, dag: str) -> list[dict[str, Any]]:
        with connect(self.home) as stack:
            return stack.get_all("/v1/tasks", dag=dag)["items"]

    def describe_unfinished(self) -> str:
        """Name each task that is not completed and each batch that is not written, with the reason."""
        tasks = [t for dag in ("quickstart", "follow") for t in self.tasks(dag)]
        with connect(self.home) as stack:
            batches = stack.get_all("/v1/batches")["items"]
        found = [
            f"{t['dag']}.{t['job']} {t['partition_key'] or t['cursor'] or ''}: {t['status']}, attempt"
            f" {t['attempt']}: {t['error_message'] or t['reason'] or 'no reason'}"
            for t in tasks
            if t["status"] != "Completed"
        ]
        found += [
            f"batch of {b['dag']}.{b['job']}: {b['state']}: {b['error_message'] or 'no error'}"
            for b in batches
            if b["state"] != "written"
        ]
        return "; ".join(found) or "every task is completed and every batch written"

    def has_blocks(self, dataset: str, blocks: int) -> bool:
        """Whether a dataset has so many blocks. Fails as soon as a task has failed for good."""
        tasks = [t for t in self.tasks("follow") if t["job"] != "refused"]
        failed = [t for t in tasks if t["status"] == "Failed" and t["retry_at"] is None]
        assert not failed, self.describe_unfinished()
        return self.count(dataset) == blocks

    def count_refused(self) -> int:
        """Count the tasks whose output a check has refused."""
        return len([t for t in self.tasks("follow") if t["error_code"] == "check_failed"])

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
    eventually(
        lambda: _is_done(stack),
        lambda: f"all tasks of the quickstart are completed: {stack.describe_unfinished()}",
        within=300,
    )
    assert stack.count("blocks") == BLOCKS
    blocks_with_logs = stack.count("logs")
    for dataset in ("compacted", "busy_blocks"):
        eventually(
            lambda d=dataset: stack.has_blocks(d, blocks_with_logs),
            lambda d=dataset: (
                f"{d} has {stack.count(d)} of {blocks_with_logs} blocks: "
                + stack.describe_unfinished()
            ),
            within=300,
        )
    eventually(
        lambda: stack.count_refused() == BLOCKS // SIZE,
        lambda: f"the check refuses every partition: {stack.describe_unfinished()}",
    )
    with trace_client.connect(stack.home) as client:
        for name in ("logs", "receivers"):
            rows = client.query(f"FROM {name} ORDER BY ALL").polars()
            assert_frame_equal(
                client.scan(name).select(rows.columns).collect().sort("*"), rows.sort("*")
            )
    return stack.read_all()


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
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"},
    )


def make_environment(aws: Ministack, key: AwsKey) -> dict[str, str]:
    s3 = {**key.environment, "TRACE_S3_REGION": REGION, "TRACE_S3_ENDPOINT": aws.url}
    roles = {"TRACE_CREDENTIALS_ROLE_ARN": aws.make_role(), "TRACE_STS_ENDPOINT": aws.url}
    return {**s3, **SWEEPS, **roles, "TRACE_S3_ENCRYPTION": "AES256"}


def check_host(aws: Ministack, bucket: str, key: AwsKey) -> None:
    """The operator host has no key of the stack, and credentials only for its task."""
    # Other processes of the machine may end meanwhile: their fields are None.
    [environment] = [
        process.info["environ"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if "trace_etl.worker.hosts.host" in (process.info["cmdline"] or ())
        and aws.url in (process.info["environ"] or {}).values()
    ]
    assert not [name for name in environment if name.startswith("AWS_") and "KEY" in name]
    assert key.secret_key not in environment.values()
    files = [f for f in Path(environment["TMPDIR"]).glob("s3-*") if f.suffix == ""]
    assert files, "the follower has credentials"
    section = read_profile(files[0], "default")
    held = AwsKey(
        section["aws_access_key_id"],
        section["aws_secret_access_key"],
        section["aws_session_token"],
    )
    [first, *_] = sorted(list_keys(aws, bucket))
    for operation, more in (("get_object", {}), ("put_object", {"Body": b"x"})):
        with pytest.raises(AwsError, match=r"(?i)denied|authorized"):
            aws.call("s3", operation, key=held, Bucket=bucket, Key=first, **more)


def list_keys(aws: Ministack, bucket: str) -> set[str]:
    """Return the keys of all objects below `data/`."""
    listed = aws.call("s3", "list_objects_v2", Bucket=bucket, Prefix="data/")["Contents"]
    return {item["Key"] for item in listed}


def check_sweep(aws: Ministack, stack: RunningStack, bucket: str) -> None:
    """A dry run names what a sweep deletes and deletes nothing; the sweep deletes exactly that."""
    foreign = f"data/{LOCAL_ORG}/notes.txt"
    aws.call("s3", "put_object", Bucket=bucket, Key=foreign, Body=b"not written by Trace")
    before = list_keys(aws, bucket)
    due = json.loads(stack.run("storage", "sweep", "--dry-run", "--json"))["items"]
    assert {item["kind"] for item in due} == {"uncommitted", "batches"}
    assert list_keys(aws, bucket) == before
    roots = [
        item["key"].removeprefix(f"s3://{bucket}/")
        if item["kind"] == "batches"
        else f"data/{LOCAL_ORG}/{item['key']}"
        for item in due
    ]
    named = {key for key in before if key.startswith((*roots,))}
    assert len(named) >= len(roots) and foreign not in named
    swept = json.loads(stack.run("storage", "sweep", "--json"))
    assert (swept["prefixes"] + swept["batches"], swept["failures"]) == (len(due), 0)
    assert list_keys(aws, bucket) == before - named
    assert json.loads(stack.run("storage", "sweep", "--dry-run", "--json"))["items"] == []


def check_certificates(stack: RunningStack, *datasets: str) -> None:
    """Compare every object and row of the datasets with the certificates."""
    for name in datasets:
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
    check_certificates(stack, "compacted")
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
        assert other.read_all() == rows
        check_certificates(other, "logs", "receivers")
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
    receivers = sum_transfers(chain)
    return {**rows, "receivers": receivers, "compacted": rows["logs"], "busy_blocks": busy}


def sum_transfers(chain: DevChain) -> list[dict[str, Any]]:
    """Compute the rows of `receivers`: one set for each range of blocks."""
    found: list[dict[str, Any]] = []
    for start in range(0, BLOCKS, SIZE):
        counts, amounts = Counter[tuple[bytes, bytes]](), Counter[tuple[bytes, bytes]]()
        for log in expected(chain, start, start + SIZE - 1)["logs"]:
            if log["topic0"] == TRANSFER and log["topic3"] is None and len(log["data"]) == 32:
                key = (log["address"], log["topic2"][12:])
                counts[key] += 1
                amounts[key] += int.from_bytes(log["data"])
        assert all(amount < 2**120 for amount in amounts.values())
        found += as_json(
            {
                "token": token,
                "receiver": receiver,
                "transfers": counts[token, receiver],
                "amount": Decimal(amounts[token, receiver]),
            }
            for token, receiver in counts
        )
    return sort_rows(found, ORDERS["receivers"])


def sort_rows(rows: list[dict[str, Any]], order: str) -> list[dict[str, Any]]:
    columns = order.split(", ")
    return sorted(rows, key=lambda row: [row[column] for column in columns])


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
            check_host(aws, bucket, key)
            check_sweep(aws, stack, bucket)
            assert stack.read_all() == rows
            check_backup(aws, stack, bucket, rows)
            stack.trace("down")
        for name, wanted in compute_rows(chain).items():
            assert sort_rows(rows[name], ORDERS[name]) == wanted != [], name
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
        (
            {"TRACE_S3_KMS_KEY_ID": "k"},
            "TRACE_S3_KMS_KEY_ID is set without TRACE_S3_ENCRYPTION=aws:kms",
        ),
    ],
)
def test_trace_up_names_the_s3_setting_to_correct(
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
