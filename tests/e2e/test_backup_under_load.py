"""A stack that works is backed up; a stack restored from it has the same data and goes on."""

from pathlib import Path

from support.waiting import eventually
from support.whole_stack import DATASETS, LAST_BLOCK, Stack, wait_until_completed
from trace_etl.lite import stack as lite
from trace_etl.lite.home import Home


def test_a_restored_stack_equals_the_snapshot_and_goes_on(stack: Stack, tmp_path: Path) -> None:
    stack.deploy("saved", tmp_path)
    stack.json("trigger", "saved", "request", "--range", f"0-{LAST_BLOCK}")
    eventually(
        lambda: {"Running", "Completed"} <= {t["status"] for t in stack.tasks("saved")},
        "one task is completed and one runs",
    )
    made = stack.json("backup", str(tmp_path / "backup.tar"))
    at_snapshot = {d["dataset"]: d["rows"] for d in made["datasets"] if d["is_current"]}
    wait_until_completed(stack, "saved")

    other = Stack(tmp_path / "restored", stack.chain, stack.node)
    restored = other.json("restore", str(tmp_path / "backup.tar"))
    assert {d["dataset"]: d["rows"] for d in restored["datasets"] if d["is_current"]} == at_snapshot
    try:
        started = other.trace("up", "--detach")
        assert started.returncode == 0, started.stderr
        wait_until_completed(other, "saved")
        for dataset in DATASETS:
            assert other.rows("saved", dataset) == stack.rows("saved", dataset), dataset
        assert any(t["attempt"] > 1 for t in other.tasks("saved")), "no running task was reaped"
    finally:
        lite.purge(Home(other.home))
    assert not other.home.exists()
    assert stack.service("dispatcher").health == "healthy"
