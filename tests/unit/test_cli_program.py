"""The program: fast help, the schema, number formats and the progress of the demo."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from support.services.dispatcher import Secrets
from support.waiting import eventually
from trace_etl import __version__
from trace_etl.cli import output
from trace_etl.cli.main import app
from trace_etl.cli.stack.demo import _read_example  # pyright: ignore[reportPrivateUsage]
from trace_etl.cli.stack.progress import DemoProgress
from trace_etl.dag.parsing import parse_dag
from trace_etl.lite import connection
from trace_etl.lite.home import Home

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "quickstart" / "dag.yaml"
HEAVY = (
    *("pyspark", "duckdb", "pandas", "pyarrow", "psycopg", "fastapi", "uvicorn", "httpx"),
    *("structlog", "sha3", "pydantic", "rich"),
)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, trace_etl.cli.main; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in HEAVY if name in loaded] == []


def test_help_groups_every_command_by_topic() -> None:
    commands, panel = dict[str, str](), ""
    for line in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout.splitlines():
        if line.startswith("╭"):
            panel = line.strip("╭─╮ ")
        elif panel and (name := re.match("│ ([a-z][a-z-]*) ", line)):
            commands[name[1]] = panel
    groups = list(dict.fromkeys(commands.values()))
    assert groups == ["Stack", "DAGs", "Tasks", "Data", "Admin"]
    assert commands["up"] == commands["devchain"] == "Stack"
    assert commands["deploy"] == commands["pause"] == "DAGs"
    assert commands["task"] == commands["backfills"] == "Tasks"
    assert commands["query"] == commands["batches"] == "Data"
    assert commands["users"] == commands["version"] == "Admin"


def list_commands(command: Any, path: str = "trace") -> Iterator[tuple[str, Any]]:
    """Yield every command below a click group, with its full name."""
    for name, child in getattr(command, "commands", {}).items():
        yield f"{path} {name}", child
        yield from list_commands(child, f"{path} {name}")


def test_every_help_text_is_one_short_imperative_sentence() -> None:
    for name, command in list_commands(get_command(app)):
        first = command.help.split("\n\n")[0]
        assert len(first) <= 45, f"{name}: {first}"  # longer sentences are cut in lists of commands
        assert re.fullmatch(r"[A-Z][a-z]+,? [^.]+\.", first), f"{name}: {first}"
        for param in command.params:
            assert param.name == "help" or param.help, f"{name}: {param.name} has no help"


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_prints_the_version_of_the_package(argument: str) -> None:
    assert CliRunner().invoke(app, [argument]).stdout == f"{__version__}\n"


# In code spans and code blocks, after a colon, and at the start of a line of code or help.
NAMED = re.compile(
    r"(?:`|: |\$ |^ *)trace ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^`#|\n]*)", re.MULTILINE
)


def list_texts() -> Iterator[Path]:
    """Yield the files with messages, help or documentation of this project."""
    yield from ROOT.glob("*.md")
    for directory, kinds in {
        "docs": ("md",),
        "examples": ("md", "yaml", "py"),
        "src/trace_etl": ("py", "sql"),
        "src/trace_etl/console/static/pages": ("js",),
    }.items():
        for kind in kinds:
            yield from (ROOT / directory).rglob(f"*.{kind}")


def find_unknown_commands(text: str, commands: dict[str, Any]) -> list[str]:
    """Return the commands and options that a text names and the program does not have."""
    unknown = list[str]()
    for name, second, rest in NAMED.findall(text):
        command = commands.get(name)
        group = getattr(command, "commands", {})
        if group and second:
            command = group.get(second)
        if command is None:
            unknown.append(f"trace {name} {second}".rstrip())
        elif name != "devchain":  # it passes its arguments on
            known = {o for param in command.params for o in (*param.opts, *param.secondary_opts)}
            unknown += [o for o in re.findall(r"(?<!\S)--[a-z-]+", rest) if o not in known]
    return unknown


def test_every_command_that_a_message_or_page_names_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert find_unknown_commands("see `trace pauses`, `trace users gone`", commands) == [
        "trace pauses",
        "trace users gone",
    ]
    assert find_unknown_commands("list them with: trace tasks --al", commands) == ["--al"]
    found = {str(path): find_unknown_commands(path.read_text(), commands) for path in list_texts()}
    assert len(found) > 400
    assert {path: names for path, names in found.items() if names} == {}


def test_the_schema_accepts_the_example_and_rejects_a_typo() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    example = yaml.safe_load(EXAMPLE.read_text())
    jsonschema.validate(example, schema)
    example["jobs"][0]["outptus"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(example, schema)


def test_the_demo_changes_the_range_size_of_the_example() -> None:
    assert parse_dag(EXAMPLE.read_text()).job("split").config == {"size": 500}
    assert parse_dag(_read_example(123)).job("split").config == {"size": 123}


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
def test_sizes_have_a_readable_unit(value: int | None, text: str) -> None:
    assert output.format_size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (2.54, "2.5 s"), (250, "4 min 10 s"), (12_000, "3 h 20 min")],
)
def test_durations_are_rounded_by_their_length(seconds: float, text: str) -> None:
    assert output.format_duration(seconds) == text


class Recorder:
    def __init__(self) -> None:
        self.shown: list[tuple[int, int, str]] = []
        self.lines: list[str] = []

    def show(self, ingested: int, ranked: int, status: str) -> None:
        self.shown.append((ingested, ranked, status))

    def print_line(self, text: str) -> None:
        self.lines.append(text)


def counts(running: int = 0, completed: int = 0) -> dict[str, int]:
    return {"running": running, "completed": completed}


def test_the_rate_is_measured_from_the_first_claim_to_the_last_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 10.0, 12.0, 14.0, 99.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    display = Recorder()
    progress = DemoProgress(1000, 10, display)
    progress.update(counts(), counts())
    progress.update(counts(running=2), counts())
    progress.update(counts(completed=5), counts(completed=1))
    progress.update(counts(completed=10), counts(completed=4))
    progress.update(counts(completed=10), counts(completed=10))
    assert display.shown == [
        (0, 0, "waiting for Spark"),
        (0, 0, "reading the chain"),
        (5, 1, "250 blocks/s, 2.0 s left"),
        (10, 4, "250 blocks/s"),
        (10, 10, "250 blocks/s"),
    ]


def test_a_repeated_message_is_printed_once() -> None:
    display = Recorder()
    progress = DemoProgress(10, 1, display)
    for text in ("range 0-9 failed", "range 0-9 failed", "range 0-9 failed again"):
        progress.print_once(text)
    assert display.lines == ["range 0-9 failed", "range 0-9 failed again"]


def test_errors_of_a_command_that_prints_json_are_json_on_stderr(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["jobs", "--json", "--home", str(tmp_path / "none")])
    assert (done.exit_code, done.stdout) == (3, "")
    (error,) = json.loads(done.stderr)["errors"]
    assert "no stack runs" in error["message"]
    done = CliRunner().invoke(
        app, ["backup", str(tmp_path / "b"), "--json", "--home", str(tmp_path)]
    )
    (error,) = json.loads(done.stderr)["errors"]
    assert (done.exit_code, error["code"]) == (1, "backup_unusable")
    assert "--home" in error["remedy"]
    done = CliRunner().invoke(app, ["jobs", "--home", str(tmp_path / "none")])
    assert done.stderr.startswith("error: no stack runs")


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    where = connection.describe(home, api=1, internal=2, query=3, pid=4)
    connection.write(home.connection, where)
    done = CliRunner().invoke(app, ["jobs", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert f"cannot read the token {home.user_token}: No such file" in done.stderr
    assert "trace up" in done.stderr


def run_worker(*arguments: str, **settings: str) -> subprocess.Popen[str]:
    """Start `trace worker` with these settings and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
    code = "from trace_etl.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "worker", *arguments],
        env={**kept, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ecs_pyton"], "no worker serves 'ecs_pyton'; use one of ecs_python,"),
        (["dispatcher"], "no worker serves 'dispatcher'"),
        (
            ["ecs_python", "lambda"],
            "one worker cannot serve trusted and untrusted runtimes; start two workers",
        ),
        (["ecs_rust"], "TRACE_DISPATCHER_URL: Field required"),
        (["lambda"], "TRACE_QUERY_URL: Field required"),
    ],
)
def test_a_worker_that_cannot_start_says_why(arguments: list[str], message: str) -> None:
    process = run_worker(*(word for name in arguments for word in ("--runtime", name)))
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 1 and message in " ".join(printed.split()), printed


def test_trace_worker_becomes_the_worker_of_its_runtimes(secrets: Secrets, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    (tmp_path / "token").write_text(secrets.worker_token)
    settings = {
        "TRACE_DISPATCHER_URL": "https://127.0.0.1:9",
        "TRACE_QUERY_URL": "https://127.0.0.1:9",
        "TRACE_TLS_CA": str(secrets.ca),
        "TRACE_WORKER_TOKEN_FILE": str(tmp_path / "token"),
        "TRACE_WORKER_ID": "test",
        "TRACE_QUEUE_DSN": "host=127.0.0.1 port=9 connect_timeout=1",
        "TRACE_OBJECTS_URL": tmp_path.as_uri(),
        "TRACE_FUNCTIONS_DIR": str(tmp_path),
        "TRACE_READY_FILE": str(ready),
    }
    process = run_worker("--runtime", "ecs_udf_ts", **settings)
    try:
        eventually(lambda: ready.exists() or process.poll() is not None, "the worker is ready")
        command = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        assert command[1:3] == ["-m", "trace_etl.worker.functions"]
        environment = Path(f"/proc/{process.pid}/environ").read_text().split("\0")
        assert 'TRACE_RUNTIMES=["ecs_udf_ts"]' in environment
        process.terminate()
        _, printed = process.communicate(timeout=120)
        assert process.returncode == 0, printed
    finally:
        process.kill()
