"""Operators in a host: a process of its own with Spark, which the worker starts, watches and ends."""

import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from support.packaging import install_example, install_test_operators
from support.spark.spark_tasks import as_input, ingest, range_scope, rows, select, task
from support.waiting import eventually
from trace_etl import account
from trace_etl.api.task.lifecycle import TaskPayload, TaskResult
from trace_etl.http.clients.dispatcher_client import Refused
from trace_etl.lite.isolation import shared_access
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.spark.errors import TaskCanceled
from trace_etl.spark.output import MAX_BYTES
from trace_etl.worker.hosts.failures import FailedInHost, describe_failure
from trace_etl.worker.hosts.host_process import HostLost, HostProcess
from trace_etl.worker.hosts.host_runner import HostRunner
from trace_etl.worker.hosts.host_start import HostStarter, launch_starter
from trace_etl.worker.settings import AllowedPaths, WorkerSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "operators"
SECRET = "s3cret/key"


@dataclass
class Listener:
    """What a worker would pass on: events, output, and whether the lease is lost."""

    events: list[Any] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)
    output: bytes = b""
    is_lost: bool = False

    def emit(self, events: Any, invalidations: Any = ()) -> None:
        if self.is_lost:
            raise Refused(409, "lease_lost", "another attempt runs")
        self.events += events

    def log(self, content: bytes) -> None:
        self.output += content

    def link(self, **secrets: str) -> DispatcherLink:
        return DispatcherLink(
            self.emit, log=self.log, report_head=self.heads.append, secrets=secrets
        )


@pytest.fixture(scope="module")
def hosts(
    objects: Path, rpc_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Generator[HostRunner]:
    """Hosts on the object store of the other tests, with operators of two installed packages."""
    packages, spark = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("host")
    install_test_operators(packages)
    install_example(EXAMPLE, packages)
    programs = tmp_path_factory.mktemp("programs")
    (programs / "count").write_text(PROGRAM.format(python=sys.executable))
    (programs / "count").chmod(0o700)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]),
        "TRACE_OBJECTS_URL": objects.as_uri(),
        "TRACE_RPC_POOLS": f'{{"default": ["{rpc_url}"]}}',
        "TRACE_SPARK_DIR": str(spark),
        "TRACE_PROGRAMS_DIR": str(programs),
        "TRACE_WORKER_TOKEN_FILE": "/never/passed/on",
    }
    cfg = WorkerSettings(
        objects_url=objects.as_uri(),
        spark_dir=spark,
        dispatcher_url="https://127.0.0.1:9",
        tls_ca=spark,
        worker_token_file=spark,
        worker_id="test",
        queue_dsn="",
        slots=2,
    )
    served = cfg.served()
    brief = served.entries["ecs_python"].model_copy(update={"idle_timeout": 0})
    made = HostRunner(cfg, replace(served, entries={**served.entries, "brief": brief}), environment)
    yield made
    made.close()


def run_in(hosts: HostRunner, payload: TaskPayload, link: DispatcherLink) -> TaskResult:
    """Run a task, and wait for its result."""
    return hosts.start(payload, link).result()


def find_host() -> psutil.Process:
    """Return the host, which is the only process of its kind below this one."""
    children = [c for c in psutil.Process().children(recursive=True) if not has_ended(c)]
    [host] = [child for child in children if "trace_etl.worker.hosts.host" in child.cmdline()]
    return host


def find_jvm(host: psutil.Process) -> psutil.Process:
    [jvm] = [child for child in host.children() if "java" in child.name()]
    return jvm


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_task_runs_in_the_host_and_writes_its_output(hosts: HostRunner, objects: Path) -> None:
    blocks = ingest(0, 9, outputs=["blocks"])
    run_in(hosts, blocks, Listener().link())
    query = select("SELECT count(*) AS n FROM blocks", as_input(blocks, name="blocks"))
    result = run_in(hosts, query, Listener().link())
    assert [output.row_count for output in result.outputs] == [1]
    assert rows(objects, query, "answer") == [{"n": 10}]
    assert "TRACE_WORKER_TOKEN_FILE" not in find_host().environ()


def test_an_operator_of_another_package_gets_its_secret(hosts: HostRunner, objects: Path) -> None:
    blocks = ingest(10, 19, outputs=["blocks"])
    run_in(hosts, blocks, Listener().link())
    config = {"columns": ["block_hash"]}
    source = as_input(blocks, name="blocks")
    hide = task("pseudonyms", config, ["hidden"], scope=range_scope(10, 19), inputs=[source])
    heard = Listener()
    run_in(hosts, hide, heard.link(pseudonym_key=SECRET))
    found = rows(objects, hide, "hidden")
    assert len({row["block_hash"] for row in found}) == 10
    assert all(len(row["block_hash"]) == 64 for row in found)
    assert heard.output == b"replacing block_hash\n"
    with pytest.raises(FailedInHost) as refused:
        run_in(hosts, hide, Listener().link())
    assert describe_failure(refused.value).code == "bad_task"


def test_calls_and_output_reach_the_worker_and_secrets_do_not_reach_its_log(
    hosts: HostRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Listener()
    with pytest.raises(FailedInHost) as failed:
        run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), heard.link(key=SECRET))
    failure = describe_failure(failed.value)
    assert (failure.code, failure.retryable) == ("operator_failed", True)
    assert failure.message == f"RuntimeError: hello {SECRET}"  # the attempt masks it
    assert [(head.position, head.head) for head in heard.heads] == [(7, 9)]
    assert "talkative.py" in failure.output
    assert [event.cursor for event in heard.events] == [7]
    assert heard.output == f"hello {SECRET}\n".encode() * 2  # printed, and sent by `context.log`
    printed = ""

    def is_printed() -> bool:
        nonlocal printed
        printed += capfd.readouterr().err
        return "raw hello ***" in printed

    eventually(is_printed, "the output of the host is copied")
    assert SECRET not in printed


def speak(hosts: HostRunner, word: str, flood: int = 0) -> list[str]:
    """Run an operator that prints and logs a word in every way. Returns the lines of its output."""
    heard = Listener()
    with pytest.raises(FailedInHost, match=word):
        run_in(hosts, task("loud", {"say": word, "flood": flood}, ["told"]), heard.link())
    return heard.output.decode().splitlines()


def test_what_operators_print_and_log_at_the_same_time_belongs_to_their_attempts(
    hosts: HostRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("alpha", "omega")
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda word: speak(hosts, word), words))
    for word, lines in zip(words, outputs, strict=True):
        assert all(word in line for line in lines), lines
        assert lines.count(f"{word} in a thread") == lines.count(f"{word} on stderr") == 200
        assert {f"{word} in bytes", f"INFO loud: {word} logged"} <= set(lines)
        assert any('"event": "event"' in line for line in lines)
        assert f"{word} in an executor" in lines
        assert f"{word} leaves an executor" in "".join(lines)
        assert lines[-1].endswith(f"{word} without an end")
    printed = capfd.readouterr().err
    assert "in a thread" not in printed and "loud:" not in printed


def test_a_host_passes_on_a_limited_part_of_the_output_of_an_attempt(hosts: HostRunner) -> None:
    lines = speak(hosts, "loud", flood=3 * MAX_BYTES)
    assert len("\n".join(lines)) in range(MAX_BYTES, MAX_BYTES + 8000)


@pytest.fixture
def short_path() -> Generator[Path]:
    """A private directory whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
@pytest.mark.parametrize("wall", ["account", "account and Landlock"])
def test_a_host_of_root_has_an_account_of_its_own(
    hosts: HostRunner, objects: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch, wall: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))  # as in a stack: only root enters it
    shared = shared_access(hosts.environment, [])
    paths = AllowedPaths(read=list(shared.read), write=list(shared.write))
    starter, process = None, None
    if wall == "account":
        settings = {"host_view": paths, "spark_dir": short_path}
    else:
        settings = {"host_paths": paths, "spark_dir": short_path}
        writable = [*paths.write, str(short_path), str(objects)]
        connection, process = launch_starter(paths.read, writable)
        starter = HostStarter(connection)
    cfg = hosts.cfg.model_copy(update=settings)
    apart = HostRunner(cfg, hosts.served, hosts.environment, starter)
    try:
        blocks = ingest(30, 39, outputs=["blocks"])
        run_in(apart, blocks, Listener().link())
        query = select("SELECT count(*) AS n FROM blocks", as_input(blocks, name="blocks"))
        run_in(apart, query, Listener().link())
        [host] = [
            child
            for child in psutil.Process().children(recursive=True)
            if not has_ended(child)
            and child.uids().real in account.UIDS
            and "trace_etl.worker.hosts.host" in child.cmdline()
        ]
        tree = [host, *host.children(recursive=True)]
        assert len(tree) > 1 and {p.uids() for p in tree} == {host.uids()}
        assert set(host.gids()) == set(host.uids())
        status = Path(f"/proc/{host.pid}/status").read_text()
        assert ("NoNewPrivs:\t1" in status) == (starter is not None)  # Landlock needs it
    finally:
        apart.close()
        if starter is not None:
            starter.close()
    assert process is None or process.wait() == 0
    assert has_ended(host)
    assert rows(objects, query, "answer") == [{"n": 10}]
    assert {path.stat().st_uid for path in objects.rglob("*")} == {0}


def test_a_refused_call_fails_the_operator_with_the_code_of_the_refusal(hosts: HostRunner) -> None:
    heard = Listener(is_lost=True)
    with pytest.raises(FailedInHost) as failed:
        run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), heard.link())
    failure = describe_failure(failed.value)
    assert (failure.code, failure.retryable) == ("lease_lost", False)


# --- a native program ----------------------------------------------------------------------------

PROGRAM = """#!{python}
import json, os, sys
import pyarrow as pa, pyarrow.parquet as pq

request = json.load(sys.stdin)
print("reads", *request["inputs"], file=sys.stderr, flush=True)
config = request["config"]
if "fail" in config:
    json.dump({{"error": {{"message": config["fail"], "retryable": False}}}}, sys.stdout)
    sys.exit(1)
files = [url.removeprefix("file://") for url in request["inputs"]["blocks"]]
rows = sum(pq.read_metadata(file).num_rows for file in files)
table = pa.table({{"rows": [rows], "key": [os.environ["key"][::-1]]}})
[[name, path]] = request["outputs"].items()
pq.write_table(table, path)
json.dump({{"outputs": {{name: {{"rows": 1 + config.get("lie", 0)}}}}}}, sys.stdout)
"""


@pytest.fixture(scope="module")
def blocks(hosts: HostRunner) -> Any:
    produced = ingest(30, 39, outputs=["blocks"])
    run_in(hosts, produced, Listener().link())
    return as_input(produced, name="blocks")


def count_blocks(blocks: Any, **settings: object) -> Any:
    config = {"program": "count", "settings": settings}
    return task("native", config, ["counted"], scope=range_scope(30, 39), inputs=[blocks])


def test_a_native_program_reads_files_and_writes_a_file(
    hosts: HostRunner, blocks: Any, objects: Path
) -> None:
    heard, payload = Listener(), count_blocks(blocks)
    result = run_in(hosts, payload, heard.link(key=SECRET))
    assert [output.row_count for output in result.outputs] == [1]
    assert rows(objects, payload, "counted") == [{"rows": 10, "key": SECRET[::-1]}]
    assert heard.output == b"reads blocks\n"


@pytest.mark.parametrize(
    ("settings", "message", "retryable"),
    [
        ({"fail": "no such token"}, "no such token", False),
        ({"lie": 1}, "output counted: the file has 1 rows, but the program reported 2", True),
    ],
)
def test_a_native_program_that_fails_or_lies_fails_the_task(
    hosts: HostRunner, blocks: Any, settings: dict[str, Any], message: str, retryable: bool
) -> None:
    with pytest.raises(FailedInHost) as failed:
        run_in(hosts, count_blocks(blocks, **settings), Listener().link(key=SECRET))
    failure = describe_failure(failed.value)
    assert (failure.code, failure.message) == ("program_failed", message)
    assert failure.retryable is retryable


def test_a_missing_native_program_is_named(hosts: HostRunner, blocks: Any) -> None:
    payload = task("native", {"program": "absent"}, ["counted"], inputs=[blocks])
    with pytest.raises(FailedInHost, match=r"config\.program: .*absent is not an executable file"):
        run_in(hosts, payload, Listener().link())


# --- hosts and JVMs that end. These tests are last, so that those above share one JVM. -----------


def test_a_killed_jvm_is_replaced_in_the_same_host(hosts: HostRunner) -> None:
    hosts.warm()
    host = find_host()
    find_jvm(host).kill()
    query = select("SELECT 1 AS n")
    for _ in range(3):  # the first attempts may find out that Spark is lost
        try:
            run_in(hosts, query, Listener().link())
            break
        except FailedInHost as error:
            assert error.failure.retryable, error.failure
    assert find_host().pid == host.pid


def run_stubborn(
    hosts: HostRunner, pool: ThreadPoolExecutor, file: Path, obeys: bool = False, **changes: object
) -> tuple[UUID, Any]:
    config = {"file": str(file), "obeys": obeys}
    payload = task("stubborn", config, ["never"]).model_copy(update=changes)
    running = pool.submit(run_in, hosts, payload, Listener().link())
    eventually(lambda: file.exists() and file.stat().st_size > 0, "the operator writes")
    return payload.task_id, running


def test_a_task_that_ignores_its_cancellation_ends_with_its_host(
    hosts: HostRunner, tmp_path: Path
) -> None:
    file = tmp_path / "written"
    with ThreadPoolExecutor(1) as pool:
        task_id, running = run_stubborn(hosts, pool, file)
        host = find_host()
        hosts.cancel(task_id, 1, 0.2)
        with pytest.raises(HostLost, match="SIGKILL"):
            running.result(60)
        size = file.stat().st_size
    assert has_ended(host)
    assert file.stat().st_size == size
    with pytest.raises(FailedInHost):  # in another host
        run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), Listener().link())
    assert find_host().pid != host.pid


def test_a_cancellation_stops_one_attempt_of_a_task(hosts: HostRunner, tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second", tmp_path / "third"]
    with ThreadPoolExecutor(2) as pool:
        task_id, first = run_stubborn(hosts, pool, files[0], obeys=True)
        same: dict[str, Any] = {"obeys": True, "task_id": task_id}
        _, second = run_stubborn(hosts, pool, files[1], **same, attempt=2)
        host = find_host()
        hosts.cancel(task_id, 1, 60)
        check_canceled(first)
        hosts.cancel(task_id, 1, 60)  # it has ended
        size = files[1].stat().st_size
        eventually(lambda: second.done() or files[1].stat().st_size > size + 100, "it goes on")
        assert not second.done()
        hosts.cancel(task_id, 2, 60)
        check_canceled(second)
        _, third = run_stubborn(hosts, pool, files[2], **same, attempt=3)
        hosts.cancel(task_id, 3, 60)
        check_canceled(third)
    assert find_host().pid == host.pid


def check_canceled(running: Any) -> None:
    with pytest.raises(FailedInHost) as failed:
        running.result(60)
    assert describe_failure(failed.value).code == "task_canceled"


def test_a_task_that_is_canceled_before_its_host_has_started_does_not_run(
    hosts: HostRunner,
) -> None:
    heard = Listener()
    with pytest.raises(TaskCanceled):
        link = replace(heard.link(), is_interrupted=lambda: True)
        run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), link)
    assert heard.output == b""


def test_a_killed_host_takes_its_jvm_along(hosts: HostRunner, tmp_path: Path) -> None:
    hosts.warm()
    host = find_host()
    jvm = find_jvm(host)
    with ThreadPoolExecutor(1) as pool:
        _, running = run_stubborn(hosts, pool, tmp_path / "written")
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(HostLost):
            running.result(60)
    eventually(lambda: has_ended(host) and has_ended(jvm), "both have ended")


BRIEF: dict[str, Any] = {"org_id": UUID(int=5), "runtime": "brief"}


def test_a_host_ends_with_spark_after_the_idle_timeout_of_its_runtime(hosts: HostRunner) -> None:
    with pytest.raises(FailedInHost):
        run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), Listener().link())
    kept = find_host()
    with hosts._use(BRIEF["org_id"], 0.0) as host:  # to see its processes before they end
        query = select("SELECT 1 AS n").model_copy(update=BRIEF)
        assert run_in(hosts, query, Listener().link()).outputs[0].row_count == 1
        brief = psutil.Process(host.pid)
        jvm = find_jvm(brief)
    eventually(lambda: has_ended(brief) and has_ended(jvm), "it ends with Spark")
    assert find_host().pid == kept.pid


def test_a_host_that_is_used_is_not_idle(hosts: HostRunner, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        task_id, running = run_stubborn(hosts, pool, tmp_path / "written", **BRIEF)
        talk = task("talkative", {"say": "hello"}, ["told"]).model_copy(update=BRIEF)
        with pytest.raises(FailedInHost):
            run_in(hosts, talk, Listener().link())
        with hosts._changed:
            assert hosts._take_expired() == []
        hosts.cancel(task_id, 1, 0.1)
        with pytest.raises(HostLost):
            running.result(60)
    eventually(lambda: BRIEF["org_id"] not in hosts._hosts, "a dead host is forgotten")


def test_a_host_whose_worker_is_killed_writes_nothing_more(
    hosts: HostRunner, tmp_path: Path
) -> None:
    """Closing the socket without a message is what the kernel does when a worker is killed."""
    file = tmp_path / "written"
    with ThreadPoolExecutor(1) as pool:
        _, running = run_stubborn(hosts, pool, file)
        host = find_host()
        [warm] = hosts._hosts.values()
        warm.process._frames._socket.shutdown(2)
        with pytest.raises(HostLost):
            running.result(60)
    eventually(lambda: has_ended(host), "the host has ended")


def test_metrics_of_a_host_are_served_by_its_worker(hosts: HostRunner) -> None:
    with pytest.raises(FailedInHost):
        run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), Listener().link())
    samples = [sample for metric in hosts.collect() for sample in metric.samples]
    assert all(sample.name.startswith("trace_") for sample in samples)
    [talks] = [sample.value for sample in samples if sample.name == "trace_test_talks_total"]
    assert talks >= 1


def test_a_late_answer_is_not_taken_for_the_next_metrics(hosts: HostRunner) -> None:
    def talk() -> None:
        with pytest.raises(FailedInHost):
            run_in(hosts, task("talkative", {"say": "hello"}, ["told"]), Listener().link())

    def read(host: HostProcess) -> float:
        [line] = re.findall(r"^trace_test_talks_total (.*)$", host.read_metrics(), re.MULTILINE)
        return float(line)

    talk()
    with hosts._use(hosts.cfg.org_id, 0.0) as host:
        before = read(host)
        find_host().suspend()
        try:
            with pytest.raises(HostLost, match="does not answer"):
                host.read_metrics()
        finally:
            find_host().resume()
        eventually(lambda: not host._answers["metrics"].empty(), "the late answer has come")
        talk()
        assert read(host) == before + 1
