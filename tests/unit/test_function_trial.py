"""Trials of functions: the real sandbox and broker, and a platform that keeps everything to itself."""

import os
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest

from trace_etl.dag.runtimes import shipped_runtimes
from trace_etl.policy.bundles import build_bundle
from trace_etl.sandbox import bubblewrap
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.worker.functions import environments
from trace_etl.worker.functions.function_results import FunctionFailed
from trace_etl.worker.functions.function_trial import (
    BadEvent,
    Trial,
    choose_runtime,
    list_views,
    make_task,
    run_trial,
)

RULE = """
from trace_etl.sdk import Task

def handler(event, context):
    task = Task(event)
    rows = task.query("WITH b AS (SELECT 1) SELECT n FROM receivers WHERE n > ?", [task.config["at_least"]])
    print("found", len(rows), "in", task.scope["end"])
    task.put_object(task.scratch_url + "a", b"x")
    assert task.get_object(task.scratch_url + "a") == b"x"
    task.emit([{"dataset": "alerts", "cursor": 9}])
    task.publish(rows)
"""
EVENT: dict[str, Any] = {
    "config": {"at_least": 5},
    "scope": {"start": 0, "end": 9},
    "inputs": [{"name": "receivers", "sql": "SELECT n FROM busy"}],
    "outputs": [{"name": "alerts"}],
}


def run(
    directory: Path, runtime: str, event: dict[str, Any] = EVENT, **changes: Any
) -> tuple[Trial, list[Any]]:
    queries: list[Any] = []

    def query(sql: str, params: Any) -> httpx.Response:
        queries.append((sql, params))
        return httpx.Response(200, json={"columns": [{"name": "n"}], "rows": [[7], [8]]})

    bundle = build_bundle(directory)
    task = make_task(event, bundle, name="rule", handler="rule.handler", runtime=runtime)
    entry = shipped_runtimes().entries[runtime].model_copy(update=changes)
    return run_trial(task, bundle, entry, list_views(event), query), queries


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("runtime", ["ecs_udf_python", "lambda"])
def test_a_trial_collects_what_a_function_does(tmp_path: Path, runtime: str) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    trial, queries = run(tmp_path, runtime)
    assert trial.error is None, trial.error
    assert trial.output == b"found 2 in 9\n"
    assert trial.published == {"alerts": [{"n": 7}, {"n": 8}]}
    assert trial.events == [{"dataset": "alerts", "cursor": 9}]
    assert list(trial.objects.values()) == [b"x"]
    view = '"receivers" AS (SELECT n FROM busy)'
    assert queries == [(f"WITH {view}, b AS (SELECT 1) SELECT n FROM receivers WHERE n > ?", [5])]


NODE_RULE = """
const { Task } = require("trace-etl");
exports.handler = async (event) => {
  const task = new Task(event);
  const rows = await task.query("SELECT n FROM receivers");
  await task.publish(rows);
  require("node:fs").writeFileSync(process.env.TMPDIR + "/a", "x");
  console.log("found", rows.length);
};
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="`reduced` needs root")
def test_a_function_without_namespaces_has_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "rule.js").write_text(NODE_RULE)
    before = os.umask(0o077)  # as in a stack
    try:
        trial, _ = run(tmp_path, "ecs_udf_ts", isolation="reduced")
    finally:
        os.umask(before)
    assert trial.error is None, trial.error
    assert trial.output == b"found 2\n"
    assert trial.published == {"alerts": [{"n": 7}, {"n": 8}]}


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise ValueError('broken')", "broken"),
        ("context.task.publish([{}], 'x')", "unknown_output: the task has no output x"),
    ],
)
def test_a_function_that_fails_says_why(tmp_path: Path, statement: str, message: str) -> None:
    (tmp_path / "rule.py").write_text(f"def handler(event, context): {statement}")
    trial, _ = run(tmp_path, "ecs_udf_python")
    assert isinstance(trial.error, FunctionFailed) and message in trial.error.detail


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("runtime", ["ecs_udf_python", "lambda"])
def test_no_limit_is_below_those_of_the_job_and_the_runtime(tmp_path: Path, runtime: str) -> None:
    code = """
        import resource
        def handler(event, context):
            print("seconds", resource.getrlimit(resource.RLIMIT_CPU)[0])
            with open("/tmp/large", "wb") as file:
                file.truncate(300 << 20)
    """
    (tmp_path / "rule.py").write_text(textwrap.dedent(code))
    trial, _ = run(tmp_path, runtime, {**EVENT, "timeout_seconds": 5000}, temporary_mib=300)
    assert trial.error is None, trial.error
    assert int(trial.output.split()[1]) >= 5000


@pytest.mark.usefixtures("sandbox")
def test_two_copies_of_a_task_do_not_replace_each_others_rows(tmp_path: Path) -> None:
    code = """
        import os
        def handler(event, context):
            if os.fork() == 0:
                context.task.publish([{"n": 1}])
                os._exit(0)
            os.wait()
            context.task.publish([{"n": 2}])
    """
    (tmp_path / "rule.py").write_text(textwrap.dedent(code))
    trial, _ = run(tmp_path, "ecs_udf_python")
    assert trial.published == {"alerts": [{"n": 1}]}
    assert isinstance(trial.error, FunctionFailed)
    assert "precondition_failed" in trial.error.detail


@pytest.mark.parametrize("runtime", ["ecs_udf_python", "lambda"])
def test_a_machine_without_user_namespaces_refuses_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    """bubblewrap is replaced by a program that fails as on such a machine. Its end is noticed at once."""
    monkeypatch.setattr(environments, "_START_SECONDS", 1e6)
    fake, code = tmp_path / "bwrap", tmp_path / "code"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace'\nexit 1\n")
    fake.chmod(0o755)
    code.mkdir()
    (code / "rule.py").write_text(RULE)
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: bubblewrap.Binary(fake))
    trial, _ = run(code, runtime)
    assert isinstance(trial.error, SandboxUnavailable)
    assert trial.error.problem == "no sandbox could be made: No permissions to create new namespace"
    assert "user namespaces" in trial.error.fix or "container" in trial.error.fix


@pytest.mark.usefixtures("sandbox")
def test_a_function_that_prints_an_error_of_the_sandbox_has_failed(tmp_path: Path) -> None:
    code = (
        "def handler(event, context): print('bwrap: no namespace', flush=True); raise SystemExit(1)"
    )
    (tmp_path / "rule.py").write_text(code)
    trial, _ = run(tmp_path, "ecs_udf_python")
    assert isinstance(trial.error, FunctionFailed)


def test_the_language_decides_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "rule.ts").touch()
    assert choose_runtime(tmp_path, None) == ("ecs_udf_ts", "rule.handler")
    (tmp_path / "other.py").touch()
    assert choose_runtime(tmp_path, "other.main") == ("ecs_udf_python", "other.main")
    with pytest.raises(BadEvent, match=r"--handler: name the function.*has other\.py, rule\.ts"):
        choose_runtime(tmp_path, None)
    (tmp_path / "bootstrap").touch()
    assert choose_runtime(tmp_path, None)[0] == "ecs_udf_rust"


@pytest.mark.parametrize("inputs", ["receivers", ["receivers"], [{"dataset": "receivers"}]])
def test_an_event_with_wrong_inputs_is_refused(tmp_path: Path, inputs: object) -> None:
    (tmp_path / "rule.py").touch()
    with pytest.raises(BadEvent, match="inputs: must be a list such as"):
        run(tmp_path, "ecs_udf_python", {**EVENT, "inputs": inputs})


def test_an_event_with_a_wrong_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rule.py").touch()
    with pytest.raises(BadEvent, match=r"scope\.start: Input should be a valid integer"):
        run(tmp_path, "ecs_udf_python", {**EVENT, "scope": {"start": "first"}})
