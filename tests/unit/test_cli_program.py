"""The program itself: quick help, the schema, numbers as people read them, the demo's counting."""

import json
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from trace_etl import __version__
from trace_etl.cli import output
from trace_etl.cli.main import app
from trace_etl.cli.stack.demo import _dag_text  # pyright: ignore[reportPrivateUsage]
from trace_etl.cli.stack.progress import Follower
from trace_etl.dag.parsing import parse_dag

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart" / "dag.yaml"
HEAVY = (
    *("pyspark", "duckdb", "pandas", "pyarrow", "psycopg", "fastapi", "uvicorn", "httpx"),
    *("structlog", "eth_hash", "pydantic", "rich"),
)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, trace_etl.cli.main; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in HEAVY if name in loaded] == []


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    for command in (
        *("up", "down", "status", "deploy", "trigger", "tasks", "task", "cancel", "datasets"),
        *("dataset", "dags", "query", "schema", "devchain", "demo", "version"),
    ):
        assert f" {command} " in text


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["version"]).stdout == f"{__version__}\n"


def test_the_schema_accepts_the_example_and_refuses_a_typo() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    example = yaml.safe_load(EXAMPLE.read_text())
    jsonschema.validate(example, schema)
    example["jobs"][0]["outptus"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(example, schema)


def test_the_example_is_a_dag_and_the_demo_can_change_its_range_size() -> None:
    assert parse_dag(EXAMPLE.read_text()).job("split").config == {"size": 500}
    assert parse_dag(_dag_text(123)).job("split").config == {"size": 123}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (2_500_000, "2.5 MB"),
        (10**13, "10.0 TB"),
    ],
)
def test_sizes_have_the_unit_that_suits(value: int | None, text: str) -> None:
    assert output.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (2.54, "2.5 s"), (250, "4 min 10 s"), (12_000, "3 h 20 min")],
)
def test_durations_are_as_exact_as_they_need_be(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


class Recorder:
    def __init__(self) -> None:
        self.shown: list[tuple[int, int, str]] = []
        self.said: list[str] = []

    def show(self, ingested: int, ranked: int, words: str) -> None:
        self.shown.append((ingested, ranked, words))

    def say(self, text: str) -> None:
        self.said.append(text)


def tally(running: int = 0, completed: int = 0) -> dict[str, int]:
    return {"running": running, "completed": completed}


def test_progress_counts_from_the_first_claim_and_stops_with_the_last_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 10.0, 12.0, 14.0, 99.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    display = Recorder()
    follower = Follower(1000, 10, display)
    follower.update(tally(), tally())
    follower.update(tally(running=2), tally())
    follower.update(tally(completed=5), tally(completed=1))
    follower.update(tally(completed=10), tally(completed=4))
    follower.update(tally(completed=10), tally(completed=10))
    assert display.shown == [
        (0, 0, "waiting for Spark"),
        (0, 0, "reading the chain"),
        (5, 1, "250 blocks/s, 2.0 s left"),
        (10, 4, "250 blocks/s"),
        (10, 10, "250 blocks/s"),
    ]


def test_a_failure_that_is_tried_again_is_told_once() -> None:
    display = Recorder()
    follower = Follower(10, 1, display)
    for text in ("range 0-9 failed", "range 0-9 failed", "range 0-9 failed again"):
        follower.tell(text)
    assert display.said == ["range 0-9 failed", "range 0-9 failed again"]
