"""CLI commands against a real Dispatcher and a real Query Service."""

import csv
import io
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from support.dags.dags import QUICKSTART
from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied
from support.services.query import Warehouse, running_query_service
from trace_etl.cli.main import app
from trace_etl.data import connection as data_connection
from trace_etl.data import hot_tables
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.model.storage import hot_table


class CommandResult(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Shell:
    """Runs the `trace` command with one home directory."""

    home: Path
    live: Live

    def run(self, *arguments: str, stdin: str | None = None) -> CommandResult:
        # The SQL check needs Spark and has its own tests.
        environment = {"TRACE_HOME": str(self.home), "TRACE_CHECK": "0"}
        result = CliRunner().invoke(app, list(arguments), env=environment, input=stdin)
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result
        return result.stdout

    def json(self, *arguments: str) -> dict:
        return json.loads(self.out(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> list[str]:
        result = self.run(*arguments)
        assert result.exit_code == code, result
        assert result.stdout == ""
        return result.stderr.splitlines()


def connect(home: Path, live: Live, query_port: int, **changes: str) -> None:
    described = connection.describe(
        Home(home), api=live.cfg.api_port, internal=1, query=query_port, pid=1
    )
    fields = {
        **vars(described),
        "ca": str(live.secrets.ca),
        "user_token": str(live.secrets.directory / "user.jwt"),
        **changes,
    }
    connection.write(home / "connection.json", connection.StackConnection(**fields))


@pytest.fixture
def shell(dispatcher: Live, tmp_path: Path) -> Shell:
    connect(tmp_path, dispatcher, 1)
    return Shell(tmp_path, dispatcher)


@pytest.fixture
def dag(tmp_path: Path) -> str:
    file = tmp_path / "dag.yaml"
    file.write_text(QUICKSTART)
    return str(file)


@pytest.fixture(scope="module")
def query_shell(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Shell]:
    """Run a Dispatcher and a Query Service with ten committed blocks."""
    home = tmp_path_factory.mktemp("home")
    with copied(templates) as dsns, live(secrets, dsns, home / "objects") as dispatcher:
        connect(home, dispatcher, 1)
        (home / "dag.yaml").write_text(QUICKSTART)
        with _with_blocks(Shell(home, dispatcher), str(home / "dag.yaml")) as shell:
            yield shell


@contextmanager
def _with_blocks(shell: Shell, dag: str) -> Generator[Shell]:
    shell.out("deploy", dag)
    warehouse = Warehouse(shell.live.dsns, shell.live.objects)
    numbers = pa.array(range(10), pa.int64())
    hashes = pa.array([b"\xab\xcd"] * 10, pa.binary())
    rows = pa.table({"block_number": numbers, "hash": hashes, "note": ["a, b"] * 10})
    warehouse.commit("blocks", 0, 9, rows)
    with running_query_service(shell.live.secrets, shell.live.dsns, warehouse.objects) as query:
        connect(shell.home, shell.live, query.cfg.query_port)
        yield shell


def test_the_rows_of_a_table_in_postgres_are_counted(query_shell: Shell) -> None:
    file = query_shell.home / "follow.yaml"
    file.write_text(
        "name: followed\n"
        "jobs: [{name: follow, operator: block_follower, source: {kind: always_on}, outputs: [hot_blocks]}]\n"
        "publish: [{name: newest, from: {job: follow}}]\n"
    )
    query_shell.out("deploy", str(file))
    dsns = query_shell.live.dsns
    table = hot_table(*Warehouse(dsns, query_shell.live.objects).generation("newest"))
    rows = pa.RecordBatch.from_pydict({"block_number": pa.array(range(7), pa.int64())})
    with data_connection.connect(dsns.data) as conn, data_connection.transaction(conn):
        hot_tables.ensure_table(conn, table, rows.schema)
        hot_tables.copy_rows(conn, table, [rows])
    counted = {i["name"]: i["row_count"] for i in query_shell.json("datasets")["items"]}
    assert (counted["newest"], counted["blocks"]) == (7, 10)
    assert query_shell.json("dataset", "newest")["row_count"] == 7
    query_shell.out("remove", "followed", "--yes")


# --- jobs -------------------------------------------------------------------------------------


def test_jobs_lists_all_jobs_and_job_shows_one(shell: Shell, dag: str) -> None:
    shell.out("deploy", dag)
    listed = shell.json("jobs", "quickstart")["items"]
    assert {item["job"] for item in listed} == {"request", "split", "ingest", "receivers"}
    assert "cryo_ingest" in shell.out("jobs")
    text = shell.out("job", "quickstart", "receivers")
    assert "quickstart.receivers" in text and "reads" in text
    assert shell.json("job", "quickstart", "receivers")["reason"] is None
    assert "no job" in "".join(shell.refused("job", "quickstart", "unknown_job"))


# --- deploy and trigger -----------------------------------------------------------------------


def test_deploy_shows_the_jobs_and_what_they_publish(shell: Shell, dag: str) -> None:
    text = shell.out("deploy", dag)
    assert text.startswith("Deployed quickstart")
    assert "cryo_ingest" in text and "blocks (published as blocks)" in text
    assert shell.out("deploy", dag).startswith("Unchanged: quickstart")


def test_deploy_with_json_prints_the_services_answer(shell: Shell, dag: str) -> None:
    answer = shell.json("deploy", dag)
    assert (answer["dag"], answer["changed"]) == ("quickstart", True)
    assert [job["name"] for job in answer["jobs"]] == ["request", "split", "ingest", "receivers"]


def test_deploy_prints_every_error_with_file_line_and_column(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        QUICKSTART.replace("cryo_ingest", "cryo_injest").replace("job: split", "job: splitt")
    )
    lines = shell.refused("deploy", str(file))
    assert len(lines) == 2
    assert f"error: {file}:14:" in lines[1] or f"error: {file}:14:" in lines[0]
    assert any("unknown operator 'cryo_injest'; did you mean 'cryo_ingest'?" in x for x in lines)
    assert any("no job 'splitt'; did you mean 'split'?" in x for x in lines)
    assert shell.json("dags")["items"] == []


def test_deploy_names_a_file_that_cannot_be_read(shell: Shell, tmp_path: Path) -> None:
    (line,) = shell.refused("deploy", str(tmp_path / "none.yaml"))
    assert line == f"error: {tmp_path / 'none.yaml'}: No such file or directory"
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in shell.refused("deploy", str(tmp_path / "binary.yaml"))[0]


def test_dags_are_listed(shell: Shell, dag: str) -> None:
    assert "No DAG is deployed" in shell.out("dags")
    shell.out("deploy", dag)
    assert "quickstart" in shell.out("dags")


def test_a_repeated_trigger_creates_no_new_tasks(shell: Shell, dag: str) -> None:
    shell.out("deploy", dag)
    assert shell.out("trigger", "quickstart", "request", "--range", "0-299").startswith("Triggered")
    again = shell.out("trigger", "quickstart", "request", "--range", "0-299")
    assert "was triggered before" in again
    shell.live.drain()
    assert len(shell.json("tasks", "--job", "ingest")["items"]) == 3


@pytest.mark.parametrize("wrong", ["9-0", "x", "5", "1-", "-1-5", "0-99999999999999999999"])
def test_a_bad_range_is_refused_and_triggers_nothing(shell: Shell, dag: str, wrong: str) -> None:
    shell.out("deploy", dag)
    (line,) = shell.refused("trigger", "quickstart", "request", f"--range={wrong}")
    assert line.startswith("error: --range: ")
    assert shell.json("tasks")["items"] == []


def test_a_trigger_of_an_unknown_or_non_manual_job_is_refused_with_the_reason(
    shell: Shell, dag: str
) -> None:
    shell.out("deploy", dag)
    (line,) = shell.refused("trigger", "nothing", "request", "--range", "0-1")
    assert "no job 'request' in a deployed DAG 'nothing'" in line
    (line,) = shell.refused("trigger", "quickstart", "ingest", "--range", "0-1")
    assert "is not a manual or cron source" in line
    (line,) = shell.refused("trigger", "quickstart", "request")
    assert "--range 0-9999" in line


# --- tasks ------------------------------------------------------------------------------------


def test_tasks_are_listed_filtered_and_paged(shell: Shell, dag: str) -> None:
    assert shell.out("tasks").strip() == "No tasks."
    shell.out("deploy", dag)
    shell.out("trigger", "quickstart", "request", "--range", "0-99")
    shell.live.drain()
    text = shell.out("tasks", "--status", "queued")
    assert "quickstart.ingest" in text and "0-99" in text
    assert "quickstart.request" not in text
    page = shell.json("tasks", "--limit", "1")
    assert len(page["items"]) == 1
    rest = shell.json("tasks", "--limit", "50", "--after", page["next"])
    assert page["items"][0]["task_id"] not in {t["task_id"] for t in rest["items"]}


def test_one_task_is_shown_and_canceled(shell: Shell, dag: str) -> None:
    shell.out("deploy", dag)
    shell.out("trigger", "quickstart", "request", "--range", "0-99")
    shell.live.drain()
    (task,) = shell.json("tasks", "--job", "ingest")["items"]
    text = shell.out("task", task["task_id"])
    assert re.search(r"status +Queued", text) and "cryo_ingest" in text
    assert shell.out("cancel", task["task_id"]).strip() == "Canceled."
    assert shell.json("task", task["task_id"])["status"] == "Canceled"


def test_a_group_of_tasks_is_previewed_and_canceled(shell: Shell, dag: str) -> None:
    shell.out("deploy", dag)
    shell.out("trigger", "quickstart", "request", "--range", "0-199")
    shell.live.drain()
    choice = ("cancel", "--dag", "quickstart", "--status", "queued")
    text = shell.out(*choice, "--dry-run")
    assert text.startswith("Would cancel 2 waiting tasks and stop 0 running tasks.")
    assert "quickstart.ingest" in text
    assert shell.json(*choice)["canceled"] == 2
    assert shell.out(*choice).strip() == "No tasks to cancel."
    assert "--dag or --error" in shell.refused("cancel")[0]


@pytest.mark.parametrize("verb", ["task", "cancel"])
def test_an_unknown_task_is_refused(shell: Shell, verb: str) -> None:
    unknown = "5b1f3a0e-0000-4000-8000-000000000000"
    assert shell.refused(verb, unknown) == [f"error: no task {unknown}; `trace tasks` lists them"]
    assert shell.refused(verb, "x")[0].startswith("error: 'x' is not an id")
    # A task id that looks like a path is treated as an invalid task id.
    assert "is not an id" in shell.refused(verb, "../dags")[0]


def test_an_unknown_status_is_refused(shell: Shell) -> None:
    (line,) = shell.refused("tasks", "--status", "sleeping")
    assert line.startswith("error: status: ")


# --- datasets and queries ---------------------------------------------------------------------


def test_datasets_are_listed_with_their_committed_blocks(query_shell: Shell) -> None:
    text = query_shell.out("datasets")
    assert "quickstart.split.ranges (not published)" in text and "0-9" in text
    assert "quickstart.ingest.blocks" in query_shell.out("datasets", "--wide")
    detail = query_shell.out("dataset", "blocks")
    assert "gaps         none" in detail and "blocks       0-9" in detail
    assert "(current, 1 partition)" in detail
    assert query_shell.json("dataset", "blocks")["row_count"] == 10
    (line,) = query_shell.refused("dataset", "nothing")
    assert "no published dataset 'nothing'" in line


def test_a_range_is_invalidated_and_lineage_is_shown(query_shell: Shell) -> None:
    text = query_shell.out(
        "invalidate", "blocks", "--range", "2-3", "--where", "n=1", "--reason", "bad"
    )
    assert text.startswith("Invalid: blocks 2-3.")
    (item,) = query_shell.json("invalidations", "--dataset", "blocks")["items"]
    assert (item["filter"], item["reason"], item["made_by"]) == ({"n": 1}, "bad", "user:local")
    assert "not routed" in query_shell.out("invalidations")
    assert query_shell.json("invalidate", "blocks", "--partition", "0-9")["partition_key"] == "0-9"
    assert "made by" in query_shell.out("lineage", "blocks@0-9")
    of_dataset = query_shell.out("lineage", "blocks")
    assert "quickstart.split.ranges" in of_dataset and "input " in of_dataset
    assert query_shell.refused("invalidate", "blocks", code=2) == [
        "error: give either --partition or --range, and not both"
    ]
    (line,) = query_shell.refused("lineage", "blocks@7-8")
    assert "no partition '7-8' is committed" in line


def test_a_query_prints_a_table(query_shell: Shell) -> None:
    text = query_shell.out("query", "SELECT block_number, hash FROM blocks ORDER BY 1 LIMIT 2")
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["block_number", "hash"]
    assert lines[2:4] == [["0", "0xabcd"], ["1", "0xabcd"]]


def test_a_query_prints_valid_csv(query_shell: Shell) -> None:
    text = query_shell.out(
        "query", "SELECT note, NULL AS nothing FROM blocks LIMIT 1", "--format", "csv"
    )
    assert list(csv.reader(io.StringIO(text))) == [["note", "nothing"], ["a, b", ""]]


def test_a_query_with_json_prints_the_services_answer(query_shell: Shell) -> None:
    for arguments in (["--json"], ["--format", "json"]):
        answer = json.loads(
            query_shell.out("query", "SELECT count(*) AS n FROM blocks", *arguments)
        )
        assert answer["rows"] == [[10]]
        assert answer["pinned"][0]["dataset"] == "blocks"


def test_a_query_can_be_read_from_standard_input(query_shell: Shell) -> None:
    result = query_shell.run("query", "-", "--format", "csv", stdin="SELECT 7 AS n")
    assert result.stdout == '"n"\n7\n'
    assert (
        query_shell.run("query", "-", stdin=" ").stderr
        == "error: the SQL is empty: give one SELECT\n"
    )


def test_a_truncated_result_is_reported_on_standard_error(query_shell: Shell) -> None:
    result = query_shell.run("query", "SELECT block_number FROM blocks", "--limit", "3")
    assert len(result.stdout.splitlines()) == 5
    assert "only the first 3 rows are shown; --format csv" in result.stderr


def test_a_bad_query_is_reported_with_its_position(query_shell: Shell) -> None:
    (line,) = query_shell.refused("query", "SELECT * FROM blokcs")
    assert line == "error: 1:15: sql: no dataset 'blokcs' is published; did you mean 'blocks'?"


# --- no running stack -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks"],
        ["task", "x"],
        ["cancel", "x"],
        ["datasets"],
        ["dataset", "x"],
        ["dags"],
        ["query", "SELECT 1"],
        ["trigger", "a", "b", "--range", "0-1"],
    ],
)
def test_every_command_without_a_stack_explains_how_to_start_one(
    tmp_path: Path, arguments: list[str]
) -> None:
    result = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path)])
    assert result.exit_code == 3
    assert result.stderr == f"error: no stack runs in {tmp_path}; start it with `trace up`\n"


def test_an_unreachable_stack_and_a_rejected_token_are_reported_differently(
    shell: Shell, tmp_path: Path
) -> None:
    connect(shell.home, shell.live, 1, api_url="https://127.0.0.1:1")
    (line,) = shell.refused("tasks", code=3)
    assert "cannot connect to https://127.0.0.1" in line and "trace up" in line
    wrong = tmp_path / "wrong.jwt"
    wrong.write_text("nonsense")
    connect(shell.home, shell.live, 1, user_token=str(wrong))
    assert shell.refused("tasks") == ["error: the token is not valid; get a new one"]
    wrong.unlink()
    (line,) = shell.refused("tasks")
    assert str(wrong) in line and "trace up" in line


FUNCTION_DAG = """
name: pushed
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: ingest, operator: cryo_ingest, inputs: [{{from: {{job: request}}}}], outputs: [blocks]}}
  - name: rule
    operator: udf
    inputs: [{{from: {{job: ingest}}}}]
    outputs: [alerts]
    update_strategy: append
    unique_key: [id]
{lines}
publish:
  - name: pushed_alerts
    from: {{job: rule}}
    write_mode: buffered
    schema: [{{name: id, type: string, nullable: false}}]
"""


@pytest.mark.parametrize("name", ["rule.py", "rule.ts", "bootstrap"])
def test_the_lines_that_push_prints_complete_a_job(shell: Shell, tmp_path: Path, name: str) -> None:
    code, file = tmp_path / "code", tmp_path / "dag.yaml"
    code.mkdir()
    (code / name).write_text("def handler(event, context): pass")
    printed, _, lines = shell.out("udf", "push", str(code)).partition("In the job:\n\n")
    assert printed == "Pushed code: 1 file. "
    file.write_text(FUNCTION_DAG.format(lines=lines))
    assert "pushed" in shell.out("plan", str(file))


def test_push_does_not_guess_one_of_several_modules(shell: Shell, tmp_path: Path) -> None:
    for name in ("rule.py", "other.py"):
        (tmp_path / name).touch()
    lines = shell.out("udf", "push", str(tmp_path), "--name", "several").splitlines()
    assert lines[-1].endswith("handler: MODULE.FUNCTION}") and "runtime" not in lines[-2]
