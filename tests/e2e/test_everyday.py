"""The everyday example on one stack: built, broken, retried, changed, backed up, restored, rolled back."""

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

from support.services.whole_stack import Stack, connect
from support.waiting import eventually
from trace_etl.lite import stack as lite
from trace_etl.lite.home import Home

DAG = Path(__file__).parents[2] / "examples" / "everyday" / "dag.yaml"
SECRET = "a secret of the webhook"
SIZE = 133
FIRST_PART, LAST_BLOCK = SIZE - 1, 3 * SIZE - 1
# The development chain has 300 blocks per hour, so its days are hours.
_GRAIN = "date_trunc('HOUR', timestamp_seconds(timestamp))"
_TEST_SETTINGS = {
    "size: 500": f"size: {SIZE}",
    "partition_by: day": "partition_by: hour",
    "to_date(timestamp_seconds(timestamp))": _GRAIN,
    "retry: {attempts: 3, delay: 10s, max_delay: 5m, unreachable: 6h}": (
        "heartbeat_timeout: 4s\n  retry: {attempts: 2, delay: 1s, max_delay: 5m, unreachable: 1s}"
    ),
}
_POSITIVE = "value_f64 > 0"
_LARGE = "value_f64 > 1e21"
_FAILING = "value_f64 / (block_number - block_number) > 0"
# Every published dataset as it must be, computed by DuckDB from the transfers.
_EXPECTED = {
    "everyday_volumes": """
        SELECT strftime(to_timestamp(timestamp), '%Y-%m-%d %H'), token, count(*), sum(value_f64)
          FROM everyday_transfers WHERE {condition} GROUP BY ALL ORDER BY ALL""",
    "everyday_holders": """
        SELECT token, to_address, block_number, count(*) FROM everyday_transfers GROUP BY ALL ORDER BY ALL""",
    "everyday_alerts": """
        SELECT concat_ws('-', 'large', block_number, log_index), block_number, 'large transfer'
          FROM everyday_transfers WHERE value_f64 >= 5e21 ORDER BY ALL""",
}
_BUILT = {
    "everyday_volumes": """
        SELECT strftime(day, '%Y-%m-%d %H'), token, transfers, volume FROM everyday_volumes ORDER BY ALL""",
    "everyday_holders": "SELECT token, holder, block_number, received FROM everyday_holders ORDER BY ALL",
    "everyday_alerts": """
        SELECT alert_id, block_number, kind FROM everyday_alerts
         WHERE alert_id LIKE 'large-%' ORDER BY ALL""",
}
_WHOLE = {
    "everyday_blocks": "SELECT * FROM everyday_blocks ORDER BY block_number",
    "everyday_transfers": "SELECT * FROM everyday_transfers ORDER BY block_number, log_index",
    "everyday_summary": "SELECT transfers, last_block FROM everyday_summary",
    "everyday_alerts": "SELECT alert_id, block_number, kind FROM everyday_alerts ORDER BY alert_id",
    **{name: _BUILT[name] for name in ("everyday_volumes", "everyday_holders")},
}


def example(condition: str = _POSITIVE) -> str:
    text = DAG.read_text()
    for setting, replacement in _TEST_SETTINGS.items():
        assert setting in text
        text = text.replace(setting, replacement)
    return text.replace(_POSITIVE, condition)


def run(stack: Stack, *words: str, fails: bool = False) -> str:
    """Run a command, check its exit code, and return what it printed."""
    done = stack.trace(*words)
    output = done.stdout + done.stderr
    assert (done.returncode == 1) if fails else (done.returncode == 0), output
    return output


def query(stack: Stack, sql: str) -> list[Any]:
    with connect(stack.home) as client:
        return client.query(sql)["rows"]


def rounded(rows: list[Any]) -> list[Any]:
    """Sums of floats depend on the order of the rows in their last digits."""
    return [[f"{v:.9e}" if isinstance(v, float) else v for v in row] for row in rows]


def check_rows(stack: Stack, last: int, condition: str = _POSITIVE) -> None:
    """Compare everything derived from the transfers with a full recomputation in DuckDB."""
    for name, expected in _EXPECTED.items():
        built = rounded(query(stack, _BUILT[name]))
        assert built, name
        assert built == rounded(query(stack, expected.format(condition=condition))), name
    blocks = query(stack, "SELECT count(*), max(block_number) FROM everyday_blocks")
    assert blocks == [[last + 1, last]]


def deliver(stack: Stack, delivery: str, payload: dict[str, Any]) -> None:
    """Send a signed delivery to the webhook, and wait until its alert is in the table."""
    body, stamp = json.dumps(payload).encode(), str(int(time.time()))
    signed = f"{stamp}\n{delivery}\n/everyday/hook\n".encode() + body
    headers = {
        "X-Trace-Timestamp": stamp,
        "X-Trace-Delivery": delivery,
        "X-Trace-Signature": f"v2={hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()}",
    }
    with connect(stack.home) as client:
        url = f"{client.api_url}/v1/webhooks/everyday/hook"
        reply = client.http.post(url, content=body, headers={**headers, "Authorization": ""})
    assert reply.status_code == 200, reply.text
    found = f"SELECT block_number, kind FROM everyday_alerts WHERE alert_id = 'delivery-{delivery}'"
    expected = [[payload["block"], payload["kind"]]]
    eventually(lambda: query(stack, found) == expected, "the alert of the delivery is stored")


def tick(stack: Stack, at: str) -> None:
    run(stack, "trigger", "everyday", "minute", "--at", at, "--wait")
    transfers = query(stack, "SELECT count(*), max(block_number) FROM everyday_transfers")
    assert query(stack, _WHOLE["everyday_summary"]) == transfers


def check_certificates(stack: Stack) -> None:
    """Compare every file and row of an ingest and of a dataset by time with the certificates."""
    for name in ("everyday_blocks", "everyday_volumes"):
        report = json.loads(run(stack, "verify", name, "--json"))
        assert report["partitions"] > 0 and report["rows"] > 0, name


def finish_backfill(stack: Stack) -> None:
    with connect(stack.home) as client:

        def ended() -> bool:
            (item,) = client.get("/v1/backfills", limit=1)["items"]
            assert item["state"] in ("running", "complete"), item
            work = [t for t in stack.tasks("everyday") if t["status"] in ("Queued", "Running")]
            return item["state"] == "complete" and not work

        eventually(ended, "the backfill and the work after it have ended")


def test_an_everyday_dag_is_built_broken_retried_changed_saved_restored_and_rolled_back(
    stack: Stack, tmp_path: Path
) -> None:
    file, backup = tmp_path / "everyday.yaml", tmp_path / "backup.tar"
    deploy = ("deploy", "--no-check", str(file), "--wait")
    # Build. Other work of the DAG, such as its ticks, does not keep the commands waiting.
    file.write_text(example())
    assert "everyday_hook" in run(stack, "plan", "--no-check", str(file))  # its secret is missing
    secret = stack.home / "secrets" / "everyday_hook"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text(SECRET)
    run(stack, *deploy)
    run(stack, "trigger", "everyday", "request", "--range", f"0-{FIRST_PART}", "--wait")
    check_rows(stack, FIRST_PART)
    stamps = [t for t in stack.tasks("everyday") if t["job"] == "stamp"]
    assert len(stamps) == (FIRST_PART + 1) // SIZE  # two inputs of one producer, one task
    tick(stack, "2026-03-01T12:00:00Z")
    deliver(stack, "d-1", {"block": 7, "kind": "phishing"})

    # Break: the node is away for longer than the policy waits. Retry when it is back.
    trigger = ("trigger", "everyday", "request", "--range", f"0-{LAST_BLOCK}", "--wait")
    with stack.node_outage():
        assert "Connection refused" in run(stack, *trigger, fails=True)
    assert "2 permanently" in run(stack, "job", "everyday", "ingest")
    assert stack.json("status")["failed_tasks"]["everyday.ingest"] == 2
    tables = {d["name"]: d["row_count"] for d in stack.json("datasets")["items"]}
    assert tables["everyday_holders"] > 0 and tables["everyday_alerts"] > 0
    check_rows(stack, FIRST_PART)
    retried = run(stack, "retry", "--dag", "everyday", "--error", "rpc_unreachable")
    assert "Retrying 2 failed tasks" in retried
    run(stack, *trigger)
    check_rows(stack, LAST_BLOCK)
    assert len(query(stack, "SELECT DISTINCT day FROM everyday_volumes")) == 2

    # Change: a version that fails is reported, and the rows of the version before are served.
    file.write_text(example(_FAILING))
    output = run(stack, *deploy, fails=True)
    assert "stuck" in output and "DIVIDE_BY_ZERO" in output
    check_rows(stack, LAST_BLOCK)
    run(stack, "rollback", "everyday")
    file.write_text(example(_LARGE))
    run(stack, *deploy)
    check_rows(stack, LAST_BLOCK, _LARGE)

    # Back up while everything is built again, and restore into another home.
    run(stack, "backfill", "everyday", "ingest", "--range", f"0-{LAST_BLOCK}", "--force")
    eventually(
        lambda: any(t["status"] == "Running" for t in stack.tasks("everyday")), "a task runs"
    )
    saved = stack.json("backup", str(backup))
    since = ("--since", stack.json("changes", "everyday_blocks", "--since", "now")["cursor"])
    finish_backfill(stack)
    changes = stack.json("changes", "everyday_blocks", *since)
    assert changes["items"] == []  # every partition was replaced by one with the same rows
    other = Stack(tmp_path / "restored", stack.chain, stack.node)
    restored = other.json("restore", str(backup))
    assert restored["datasets"] == saved["datasets"] and restored["tables"] == saved["tables"]
    try:
        run(other, "up", "--detach")
        finish_backfill(other)
        assert any(t["attempt"] > 1 for t in other.tasks("everyday")), "no running task was reaped"
        tick(stack, "2026-03-01T12:01:00Z")
        tick(other, "2026-03-01T12:01:00Z")
        for name, sql in _WHOLE.items():
            assert rounded(query(other, sql)) == rounded(query(stack, sql)), name
        refused = run(other, "changes", "everyday_blocks", *since, fails=True)
        assert "restored from a backup" in refused and "read the whole dataset" in refused
        deliver(other, "d-2", {"block": 8, "kind": "rug pull"})

        # Roll back in both stacks.
        for each in (stack, other):
            run(each, "rollback", "everyday")
            check_rows(each, LAST_BLOCK)
        check_certificates(other)
    finally:
        lite.purge(Home(other.home))
    assert not other.home.exists()
    assert stack.service("dispatcher").health == "healthy"
