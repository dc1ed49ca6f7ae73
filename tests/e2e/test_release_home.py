"""A home that the last release made: today's stack starts it, keeps its data and continues its work."""

from support.services.release_home import RELEASE
from support.services.whole_stack import Stack, connect
from support.waiting import eventually

BLOCKS = "SELECT count(*), min(block_number), max(block_number) FROM kept_blocks"


def query(stack: Stack, sql: str) -> list[object]:
    with connect(stack.home) as client:
        return client.query(sql)["rows"][0]


def wait_for_tasks(stack: Stack, count: int) -> None:
    def ended() -> bool:
        tasks = stack.tasks("kept")
        assert not [task for task in tasks if task["status"] == "Failed"], tasks
        return len([task for task in tasks if task["status"] == "Completed"]) == count

    eventually(ended, f"{count} tasks of kept are completed")


def test_a_home_of_the_last_release_keeps_its_data_and_continues_its_work(stack: Stack) -> None:
    assert (stack.home / "postgres" / "data" / "PG_VERSION").exists()
    assert not (stack.home / "postgres").is_symlink(), "the cluster is still outside of the home"
    assert not stack.home.with_name(f"{stack.home.name}-postgres").exists()

    # The task that was queued when the release stopped.
    wait_for_tasks(stack, 16)
    assert query(stack, BLOCKS) == [80, 0, 79]
    busy = "SELECT count(*), sum(logs) FROM kept_busy WHERE block_number < 60"
    assert query(stack, busy) == [58, 320]
    early = "SELECT count(*) FROM kept_alerts WHERE block_number < 60"
    assert query(stack, early) == [55]
    alerts = query(stack, "SELECT count(*) FROM kept_alerts")

    # The same file changes nothing, and new blocks run through all jobs.
    deployed = stack.json("deploy", "--no-check", str(RELEASE / "kept.yaml"))
    assert deployed["changed"] is False
    done = stack.trace("trigger", "kept", "request", "--range", "70-99", "--wait")
    assert done.returncode == 0, done.stderr
    wait_for_tasks(stack, 16 + 5)
    assert query(stack, BLOCKS) == [100, 0, 99]
    eventually(
        lambda: query(stack, "SELECT count(*) FROM kept_alerts") > alerts,
        "alerts of new blocks are in the table of the last release",
    )
    assert query(stack, early) == [55]
