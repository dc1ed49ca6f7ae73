"""Start, failure and end of the JVM. Each test uses a process, because a process has one session."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.waiting import eventually
from trace_etl.lite.postgres.databases import Dsns
from trace_etl.spark.session.scratch import Scratch

DEADLINE = 300.0

PRELUDE = """
import os, signal, sys, threading, time, traceback
from pathlib import Path
import structlog
from support.spark.spark_tasks import rows, select
from support.spark.stream_runs import FollowerAttempts
from support.waiting import eventually
from trace_etl.spark.errors import SparkLost, SparkNotStarted, TaskCanceled
from trace_etl.spark.runner import SparkRunner
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.settings import SparkSettings

def fail(*error):
    traceback.print_exception(*error)
    os._exit(1)  # do not wait for threads: a test that waits for this process would hang

sys.excepthook = fail
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
root = Path(sys.argv[1])
java = Path(sys.argv[2]) if len(sys.argv) > 2 else None
runner = SparkRunner(SparkSettings(FileStore(root / "objects"), root / "spark", java_home=java))

def answer():
    payload = select("SELECT count(*) AS n FROM range(1000)")
    runner.run(payload)
    return rows(root / "objects", payload, "answer")
"""


@contextmanager
def _process(script: str, *args: Path) -> Generator[subprocess.Popen[str]]:
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def _system_java() -> Path | None:
    found = shutil.which("java")
    return Path(found).resolve().parent.parent if found else None


def test_a_dead_jvm_is_replaced_and_the_new_one_ends_with_its_process(
    tmp_path: Path, dsns: Dsns
) -> None:
    (tmp_path / "dsn").write_text(dsns.data)
    script = """
        handler = lambda *args: None
        signal.signal(signal.SIGINT, handler)
        runner.warm()
        assert signal.getsignal(signal.SIGINT) is handler  # PySpark would replace it
        assert answer() == [{"n": 1000}]
        stream = FollowerAttempts(runner, (root / "dsn").read_text())
        first = stream.attempt(1)
        assert stream.reported_cursors.get(timeout=300) == 9

        def kill_soon():
            tracker = runner.session.get().sparkContext.statusTracker()
            eventually(tracker.getActiveJobsIds, "a job under way")
            runner.session.engine.jvm.kill()

        threading.Thread(target=kill_soon).start()
        try:
            runner.run(select("SELECT sum(a.id) AS n FROM range(10000000) a, range(10000000) b"))
            raise AssertionError("the task outlived its JVM")
        except SparkLost as error:
            assert error.retryable
        assert isinstance(first.exception(300), SparkLost)
        assert answer() == [{"n": 1000}]  # from a new JVM, started automatically
        second = stream.attempt(2)
        stream.server.mine(1)
        assert stream.reported_cursors.get(timeout=300) == 10
        stream.cancel()
        assert isinstance(second.exception(300), TaskCanceled)
        print(runner.session.engine.jvm.process.pid, flush=True)
        sys.stdin.read()
    """
    # The shared session uses the Java of the wheel, this test the Java of the machine.
    with _process(script, tmp_path, *filter(None, [_system_java()])) as started:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert line, "the script failed, see its standard error"
        jvm = psutil.Process(int(line))
        workers = jvm.children(recursive=True)
        assert workers
        started.send_signal(signal.SIGKILL)
        started.wait()
        eventually(lambda: not any(p.is_running() for p in (jvm, *workers)), "all processes ended")


def test_closing_interrupts_a_starting_spark(tmp_path: Path) -> None:
    script = """
        outcome = []
        def start():
            try:
                runner.warm()
            except SparkNotStarted as error:
                outcome.append(error)
        thread = threading.Thread(target=start)
        thread.start()
        eventually(lambda: runner.session.engine.jvm, "a JVM")
        began = time.monotonic()
        runner.close()
        thread.join()
        print(time.monotonic() - began, len(outcome), flush=True)
    """
    with _process(script, tmp_path) as started:
        assert started.stdout is not None
        took, failures = started.stdout.readline().split()
        assert float(took) < 60 and failures == "1"
        assert started.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda home: None, "not a Java home"),
        (lambda home: make_failing_java(home), "the JVM exited with 1"),
    ],
    ids=["no_java", "broken_java"],
)
def test_a_java_that_does_not_start_is_reported(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    home = tmp_path / "java"
    home.mkdir()
    make(home)
    script = """
        try:
            runner.warm()
        except SparkNotStarted as error:
            print(error, flush=True)
    """
    with _process(script, tmp_path, home) as started:
        assert started.stdout is not None
        assert message in started.stdout.readline()
        assert started.wait(DEADLINE) == 0


def make_failing_java(home: Path) -> None:
    (home / "release").write_text('JAVA_VERSION="21.0.1"\n')
    (home / "bin").mkdir()
    (home / "bin" / "java").symlink_to(shutil.which("false") or "")


def test_only_scratch_directories_of_ended_processes_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    dead, living = tmp_path / f"run-{ended.pid}", tmp_path / f"run-{os.getppid()}"
    for directory in (dead, living):
        (directory / "local").mkdir(parents=True)
    made = Scratch.make(tmp_path)
    assert not dead.exists() and living.exists() and made.directory.exists()


def test_sockets_have_a_short_path_under_a_deep_scratch_directory(tmp_path: Path) -> None:
    made = Scratch.make(tmp_path / ("deep" * 30))
    try:
        assert len(str(made.sockets)) <= 64 and made.sockets.stat().st_mode & 0o777 == 0o700
    finally:
        made.remove()
    assert not made.sockets.exists()
