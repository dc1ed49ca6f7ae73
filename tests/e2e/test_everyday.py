"""The everyday example on the whole stack: built, and compared with a full recomputation."""

from pathlib import Path
from typing import Any

from support.whole_stack import LAST_BLOCK, Stack, connect

DAG = Path(__file__).parents[2] / "examples" / "everyday" / "dag.yaml"
SECRET = "a secret of the webhook"
# The development chain has 300 blocks per hour, so its days are hours.
RECOMPUTED = """
SELECT strftime(to_timestamp(timestamp), '%Y-%m-%d %H') AS hour, token, count(*), sum(value_f64)
  FROM everyday_transfers WHERE {condition} GROUP BY ALL ORDER BY ALL
"""
BUILT = "SELECT strftime(day, '%Y-%m-%d %H'), token, transfers, volume FROM everyday_volumes ORDER BY ALL"
_GRAIN = "date_trunc('HOUR', timestamp_seconds(timestamp))"


def example(condition: str = "value_f64 > 0") -> str:
    text = DAG.read_text().replace("size: 500", "size: 50").replace("delay: 10s", "delay: 1s")
    text = text.replace("partition_by: day", "partition_by: hour")
    text = text.replace("to_date(timestamp_seconds(timestamp))", _GRAIN)
    return text.replace("value_f64 > 0", condition)


def deploy(stack: Stack, directory: Path, text: str, *options: str) -> tuple[int, str]:
    file = directory / "everyday.yaml"
    file.write_text(text)
    done = stack.trace("deploy", "--no-check", str(file), *options)
    return done.returncode, done.stdout + done.stderr


def query(stack: Stack, sql: str) -> list[Any]:
    with connect(stack.home) as client:
        return client.query(sql)["rows"]


def rounded(rows: list[Any]) -> list[Any]:
    """Sums of floats depend on the order of the rows in their last digits."""
    return [[*row[:3], f"{row[3]:.9e}"] for row in rows]


def check_volumes(stack: Stack, condition: str = "value_f64 > 0") -> list[Any]:
    """Compare the aggregates with a full recomputation in DuckDB."""
    built = rounded(query(stack, BUILT))
    assert built == rounded(query(stack, RECOMPUTED.format(condition=condition)))
    return built


def test_the_everyday_example_gives_the_rows_of_a_full_recomputation(
    stack: Stack, tmp_path: Path
) -> None:
    secret = stack.home / "secrets" / "everyday_hook"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text(SECRET)

    # Build. Other work of the DAG, such as its ticks, does not keep the commands waiting.
    code, output = deploy(stack, tmp_path, example(), "--wait")
    assert code == 0, output
    trigger = ("trigger", "everyday", "request", "--range", f"0-{LAST_BLOCK}", "--wait")
    done = stack.trace(*trigger)
    assert done.returncode == 0, done.stderr
    first = check_volumes(stack)
    assert len({row[0] for row in first}) == 2
    stamps = [t for t in stack.tasks("everyday") if t["job"] == "stamp"]
    assert len(stamps) == (LAST_BLOCK + 1) // 50  # two inputs of one producer, one task

    # The schedule.
    at = "2026-03-01T12:00:00Z"
    done = stack.trace("trigger", "everyday", "minute", "--at", at, "--wait")
    assert done.returncode == 0, done.stderr
