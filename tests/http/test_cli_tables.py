"""Tables of the command line fit 80 columns, and their short ids are accepted by every command."""

import json
import os
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructType
from typer.main import get_command
from typer.testing import CliRunner

from support.cli import TRACE
from support.dags.pressure import graph
from support.data.buffered import publish_unwritten
from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.terminal import Terminal
from trace_etl.cli.dags.check import print_analysis
from trace_etl.cli.main import app
from trace_etl.cli.output import choose_wide
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.lite.processes import lock, record
from trace_etl.lite.processes.record import ServiceRecord
from trace_etl.spark.analysis import Analysis

DAG = "ethereum_mainnet_decentralised_exchange_volumes"
JOB = "decode_uniswap_v3_swap_events_of_all_pools"
AFTER = "aggregate_daily_volumes_by_pool"
LAST = 22_000_029
ERROR = "eth_getLogs of 22000000 to 22000009 at node.example: rate limit exceeded; try later " * 2


@dataclass(frozen=True)
class Shell:
    """The command line, for a Dispatcher with long names."""

    bench: Bench
    home: Path
    backfill: str
    batch: str

    @property
    def environment(self) -> dict[str, str]:
        return {"TRACE_HOME": str(self.home), "COLUMNS": "80", "TRACE_CHECK": "0"}

    def run(self, *words: str, code: int | None = 0) -> str:
        """Run a command. Returns its answer, or its errors if a failure is expected."""
        result = CliRunner().invoke(app, list(words), env=self.environment)
        assert code is None or result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    @property
    def tasks(self) -> list[str]:
        return [t["task_id"] for t in self.json("tasks", "--dag", DAG, "--job", JOB)["items"]]


@pytest.fixture(scope="module")
def shell(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Shell]:
    home = tmp_path_factory.mktemp("home")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, home / "objects") as running,
        bench(running) as here,
    ):
        described = connection.describe(
            Home(home), api=running.cfg.api_port, internal=1, query=1, pid=1
        )
        fields = {
            **vars(described),
            "ca": str(secrets.ca),
            "user_token": str(secrets.directory / "user.jwt"),
        }
        connection.write(home / "connection.json", connection.StackConnection(**fields))
        yield Shell(here, home, *fill(here))


def fill(here: Bench) -> tuple[str, str]:
    """Make rows for every table. Returns the ids of a backfill and of a batch."""
    built = graph(here, {JOB: "split", AFTER: JOB}, name=DAG)
    span = {"start": LAST - 29, "end": LAST}
    backfill = here.user.post("/v1/backfills", json={"dag": DAG, "job": JOB, **span}).json()
    here.live.run(here.live.service.feeder.feed_once)
    here.live.drain()
    failed, done, _ = built.queued(JOB)
    fault = {"error_code": "rpc_refused", "error_message": ERROR, "retryable": False}
    assert here.complete(here.claimed(failed), "Failed", **fault).status_code == 200
    attempt = here.claimed(done)
    written = here.write_output(attempt, 3)
    reply = here.complete(attempt, datasets_published=[written], events=[attempt.event()])
    assert reply.status_code == 200, reply.text
    here.live.run(here.live.service.feeder.feed_once)  # records the failed chunk
    pause = {"dag": DAG, "job": JOB, "reason": ERROR}
    assert here.user.post("/v1/pauses", json=pause).status_code == 200
    invalidation = {"start": LAST - 29, "end": LAST, "reason": ERROR}
    path = f"/v1/datasets/{DAG}_{JOB}/invalidations"
    assert here.user.post(path, json=invalidation).status_code == 200
    here.user.post("/v1/users", json={"name": "first.last@trading-desk.example", "role": "reader"})
    batch = publish_unwritten(here)
    here.rows("UPDATE outbox SET last_error = %s", ERROR)
    values = {"dag": DAG, "error": ERROR, "batch": publish_unwritten(here)}
    with psycopg.connect(here.live.dsns.state, autocommit=True) as conn:
        for statement in _RARE_ROWS:
            assert conn.execute(statement, values).rowcount == 1, statement
    return backfill["backfill_id"], batch


# Rows that need a sink, a receiver, a Query Service or a function, with values as long as they get.
_RARE_ROWS = (
    """UPDATE buffer_publishes SET failed_at = now(), error_code = 'bad_batch',
              error_message = %(error)s WHERE publish_id = %(batch)s""",
    """INSERT INTO check_results (org_id, job_id, dataset_uuid, dataset_version, partition_key, name, kind,
              on_failure, consumers, is_committed, passed, checked_rows, failing_rows, samples, message,
              task_id, attempt)
       SELECT t.org_id, t.job_id, d.dataset_uuid, d.dataset_version, '22000000-22000009',
              'amounts_of_all_pools_are_positive', 'condition', 'block_consumers', ARRAY[%(dag)s], true,
              false, 1234567, 89012, '[]', %(error)s, t.task_id, 1
         FROM tasks t JOIN datasets d USING (job_id) LIMIT 1""",
    """INSERT INTO notifications (org_id, dag_id, dag, rule, event, dedupe_key, body, url, secret, tries,
              failed_at, last_error)
       SELECT org_id, dag_id, name, 'reorganisations_of_the_main_chain', 'gap', 'k',
              jsonb_build_object('dataset', %(dag)s::text, 'range_start', 22000000,
                                 'range_end', 22999999),
              'https://receiver.example/a/very/long/path/of/a/webhook', 's', 5, now(), %(error)s
         FROM dags WHERE name = %(dag)s""",
    """INSERT INTO query_audit (query_id, asked_at, org_id, user_name, outcome, datasets, row_count,
              byte_count, elapsed_ms)
       SELECT gen_random_uuid(), now(), org_id, 'first.last@trading-desk.example', 'answered',
              jsonb_build_array(jsonb_build_object('dataset', %(dag)s::text)), 123456789, 9876543210, 54321.5
         FROM dags WHERE name = %(dag)s""",
    """INSERT INTO udf_bundles (org_id, name, sha256, size_bytes, file_count, pushed_by)
       SELECT org_id, name, repeat('ab', 32), 51234567, 1234, 'first.last@trading-desk.example'
         FROM dags WHERE name = %(dag)s""",
    """INSERT INTO unused_prefixes (prefix, kind, org_id, task_id, attempt, dataset_uuid, dataset_version,
              unused_since, objects, bytes)
       SELECT format('cold/datasets/%%s/%%s/%%s/1/', d.dataset_uuid, d.dataset_version, t.task_id),
              'superseded', t.org_id, t.task_id, 1, d.dataset_uuid, d.dataset_version,
              now() - interval '400 days', 1234567, 98765432109
         FROM tasks t JOIN datasets d USING (job_id) WHERE d.dataset_version IS NOT NULL LIMIT 1""",
)


def command_names(command: Any, path: tuple[str, ...] = ()) -> Generator[tuple[str, ...]]:
    for name, child in getattr(command, "commands", {}).items():
        if any("--wide" in param.opts for param in child.params):
            yield (*path, name)
        yield from command_names(child, (*path, name))


# Not here: the rows of a query (test_analysts). `check` starts Spark and `status` needs a supervisor.
_ELSEWHERE = {("query",), ("check",), ("status",)}


def test_every_table_fits_80_columns_and_wide_prints_everything(shell: Shell) -> None:
    dataset, failed = f"{DAG}_{JOB}", shell.json("tasks", "--status", "failed")["items"][0]
    blocks = ("--range", f"{LAST - 29}-{LAST}")
    deployed = shell.home / "dag.yaml"
    deployed.write_text(
        shell.run("versions", DAG, shell.json("versions", DAG)["items"][0]["dag_version"])
    )
    commands = {
        ("tasks",): (),
        ("task",): (failed["task_id"],),
        ("retry",): ("--dag", DAG, "--dry-run"),
        ("backfill",): (DAG, JOB, *blocks, "--dry-run"),
        ("backfills",): (),
        ("backfills", "show"): (shell.backfill,),
        ("outbox", "list"): (),
        ("notifications",): (),
        ("jobs",): (),
        ("job",): (DAG, AFTER),
        ("dags",): (),
        ("graph",): (DAG,),
        ("failures",): (),
        ("udf", "list"): (),
        ("pressure",): (),
        ("datasets",): (),
        ("dataset",): (dataset,),
        ("changes",): (dataset,),
        ("checks",): (),
        ("runtimes",): (),
        ("operators",): (),
        ("storage",): (),
        ("storage", "unused"): (),
        ("storage", "sweep"): ("--dry-run",),
        ("batches", "list"): (shell.json("batches", "show", shell.batch)["dataset"],),
        ("batches", "dead"): (),
        ("invalidations",): (),
        ("lineage",): (dataset,),
        ("audit",): (),
        ("users", "list"): (),
        ("versions",): (DAG,),
        ("verify",): (dataset,),
        ("doctor",): (),
        ("deploy",): (str(deployed),),
    }
    assert set(commands) | _ELSEWHERE == set(command_names(get_command(app)))
    for command, arguments in commands.items():
        text = shell.run(*command, *arguments, code=None)
        is_table = require_80_columns(text)
        assert is_table or command == ("storage", "sweep"), text  # nothing is due
    assert failed["task_id"] not in shell.run("tasks")
    wide = shell.run("tasks", "--wide")
    assert failed["task_id"] in wide and f"{DAG}.{JOB}" in wide and "worker" in wide
    assert "1" in next(line for line in shell.run("jobs").splitlines() if JOB[-4:] in line)


def require_80_columns(text: str) -> bool:
    """Check the width of a command's output. Returns whether it has a table."""
    # A sentence beside a table is wrapped by the terminal.
    lines = [line for line in text.splitlines() if not line.endswith(".")]
    assert max(map(len, lines), default=0) <= 80, text
    return any(set(line) <= {"─", " "} and line for line in lines)


def test_the_processes_of_a_stack_fit_80_columns(shell: Shell, tmp_path: Path) -> None:
    home = Home(tmp_path / "a_home_with_a_name_that_is_much_longer_than_usual_for_a_directory")
    home.open()
    since = datetime.now(UTC).isoformat()
    url = "https://127.0.0.1:65535"
    parts = [
        ServiceRecord(
            f"ecs_python_{n}", url, "restarting", 4194304, 1.0, since, 99, 139, "uid 4242"
        )
        for n in range(3)
    ]
    record.write(home.record, parts)
    with lock.held(home.lock):
        text = shell.run("status", "--home", str(home.path), code=None)
        assert require_80_columns(text) and "ecs_python_2" in text and str(os.getpid()) in text
        assert "uid 4242" in shell.run("status", "--home", str(home.path), "--wide", code=None)


def test_the_columns_of_checked_sql_fit_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    choose_wide(False)  # the commands of other tests ran in this process
    amounts = MapType(StringType(), DecimalType(38, 18))
    deep = ArrayType(StructType().add("first_address", StringType()).add("amounts", amounts))
    schema = StructType().add("sqrt_price_x96_after_the_swap", deep).add("n", LongType())
    print_analysis(Analysis({(JOB, "swaps_of_all_pools"): schema}, [], [AFTER]), as_json=False)
    text = capsys.readouterr().out
    assert require_80_columns(text) and "bigint" in text and f"{AFTER} is not checked" in text


def test_every_command_with_an_id_accepts_the_short_one(shell: Shell) -> None:
    for kind, whole in (("task", shell.tasks[0]), ("backfill", shell.backfill)):
        listed = shell.run("tasks" if kind == "task" else "backfills")
        short = whole[:18] if whole[14] == "7" else whole[:8]
        assert short in listed
        show = ("task",) if kind == "task" else ("backfills", "show")
        assert shell.json(*show, short)[f"{kind}_id"] == whole
        assert shell.json(*show, short.replace("-", "").upper())[f"{kind}_id"] == whole
    assert shell.json("batches", "show", shell.batch[:8])["publish_id"] == shell.batch
    failed = shell.json("tasks", "--status", "failed")["items"][0]["task_id"]
    assert shell.json("retry", failed[:20], "--dry-run")["retried"] == 1
    unused = shell.json("tasks", "--dag", DAG, "--job", JOB, "--status", "queued")["items"][0]
    assert shell.json("cancel", unused["task_id"][:20])["status"] == "Canceled"


def test_an_ambiguous_or_unknown_short_id_is_refused(shell: Shell) -> None:
    ids = [f"abcdef00-0000-4000-8000-00000000000{n}" for n in range(2)]
    for task_id in ids:
        shell.bench.rows(
            "UPDATE tasks SET task_id = %s WHERE task_id = (SELECT task_id FROM tasks"
            " WHERE status = 'Completed' AND NOT starts_with(task_id::text, 'abcdef') LIMIT 1)",
            task_id,
        )
    text = shell.run("task", "abcdef", code=1)
    assert "several ids begin with 'abcdef'" in text and all(task_id in text for task_id in ids)
    assert "no task begins with 'abcd1234'" in shell.run("cancel", "abcd1234", code=1)
    assert "is not an id" in shell.run("task", "abc", code=1)


def test_wrong_arguments_are_reported_as_json_with_the_option_json(shell: Shell) -> None:
    for words, message in (
        (("tasks", "--limit", "many"), "--limit"),
        (("task",), "Missing argument 'TASK'"),
        (("nothing",), "No such command"),
        (("backfill", DAG, JOB, "--range", "9-1"), "--range"),
        (("task", str(uuid4())), "no task"),
    ):
        done = subprocess.run(
            [*TRACE, *words, "--json"], env=shell.environment, capture_output=True, text=True
        )
        assert done.returncode in (1, 2) and done.stdout == ""
        assert message in json.loads(done.stderr)["errors"][0]["message"]


def test_progress_is_shown_on_a_terminal_only_and_on_stderr(shell: Shell) -> None:
    words = ("backfills", "show", shell.backfill, "--wait")
    terminal = Terminal([*TRACE, *words], shell.environment, columns=80)
    try:
        terminal.expect("chunks")
        terminal.expect("/3")
    finally:
        terminal.close()
    with subprocess.Popen(
        [*TRACE, *words],
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        shell.bench.user.post(f"/v1/backfills/{shell.backfill}/cancel")
        output, errors = command.communicate()
    assert command.returncode == 1
    assert "━" not in output + errors and "chunks: canceled" in output


def test_overview_map_and_versions_print_the_answers_of_the_api(shell: Shell) -> None:
    dataset = f"{DAG}_{JOB}"
    text = shell.run("overview")
    assert f"failed                    {shell.json('overview')['failed']}" in text
    found = shell.json("map", dataset)
    lines = shell.run("map", dataset).splitlines()
    assert lines[0].count("█") == found["buckets"] and "0 missing" in lines[-1]
    wider = shell.run("map", dataset, "--range", f"{LAST - 29}-{LAST}")
    assert "F" in wider.splitlines()[0] and "20 missing" in wider
    (version,) = shell.json("versions", DAG)["items"]
    assert version["dag_version"] in shell.run("versions", DAG, "--wide")
    short = version["dag_version"][:8]
    assert short in shell.run("dags") and short in shell.run("versions", DAG)
    for name in (version["dag_version"], short):
        assert shell.run("versions", DAG, name).lstrip().startswith(f"name: {DAG}")
    assert "no version begins with" in shell.run("versions", DAG, "ffffffff", code=1)
    assert "keep running" in shell.run("versions", DAG, short, version["dag_version"])


def test_the_end_of_a_log_and_the_sql_of_a_task_are_printed(shell: Shell) -> None:
    (task,) = shell.bench.tasks(1)
    attempt = shell.bench.claimed(task)
    silent = CliRunner().invoke(app, ["logs", task], env=shell.environment)
    assert (silent.stdout, silent.stderr) == ("", "The task has printed nothing.\n")
    text = "".join(f"line {n} €\n" for n in range(9_000))  # more than one window
    for start in range(0, len(text), 40_000):
        position = len(text[:start].encode())
        part = {"position": position, "text": text[start : start + 40_000]}
        assert shell.bench.call("/v1/task/logs", attempt, **part).status_code == 200
    assert shell.run("logs", task, "--tail", "2") == "line 8998 €\nline 8999 €\n"
    assert shell.run("logs", task, "--tail", "8500") == "".join(text.splitlines(True)[-8500:])
    assert shell.run("logs", task, "--tail", "9999") == shell.run("logs", task) == text
    assert shell.json("logs", task, "--tail", "1")["parts"][0]["text"] == "line 8999 €\n"
    assert "1  SELECT 1 FROM ranges" in shell.run("task", task)
