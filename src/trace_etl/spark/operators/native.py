"""Run a native program of the platform: it reads Parquet files and writes one for each output."""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from trace_etl.api.task.payload import TaskInput
from trace_etl.dag.operators import NativeConfig
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask, NothingCommitted, OperatorError
from trace_etl.spark.io.inputs import open_partition
from trace_etl.spark.io.writers import NativeFiles

PROTOCOL = 1
_CHECK_SECONDS = 0.1
_MAX_RESULT = 1024 * 1024
_URL_LIFE = timedelta(hours=12)


class ProgramFailed(OperatorError, code="program_failed"):
    """The program ended with an error, or broke the protocol."""


class ProgramRefused(OperatorError, code="program_failed", retryable=False):
    """The program reported that another attempt would fail as well."""


def run(context: OperatorContext, config: NativeConfig) -> NativeFiles:
    """Return the files that the program wrote. Raises BadTask, ProgramFailed."""
    program = _find_program(context, config.program)
    place = tempfile.TemporaryDirectory(prefix="native-")
    outputs = {name: Path(place.name) / f"{n}.parquet" for n, name in enumerate(context.outputs)}
    request = {
        "protocol": PROTOCOL,
        "task": context.task.model_dump(mode="json"),
        "config": config.settings,
        "inputs": {item.name: _list_files(context, item) for item in context.task.inputs},
        "outputs": {name: str(path) for name, path in outputs.items()},
    }
    try:
        result = _Program(context, program, place.name).run(json.dumps(request).encode())
        tables = {name: _open_output(name, outputs[name], result) for name in outputs}
    except BaseException:
        place.cleanup()
        raise
    return NativeFiles(tables, place.cleanup)


def _find_program(context: OperatorContext, name: str) -> Path:
    directory = context.settings.programs_dir
    if directory is None:
        raise BadTask("native: this worker has no directory of programs; set TRACE_PROGRAMS_DIR")
    program = directory / name
    if not program.is_file() or not os.access(program, os.X_OK):
        raise BadTask(f"native, config.program: {program} is not an executable file; put it there")
    return program


def _list_files(context: OperatorContext, item: TaskInput) -> list[str]:
    """Return URLs of the files of an input: of the file system, or signed ones of S3."""
    if not item.partitions:
        raise NothingCommitted(f"input {item.name} has no files; native programs read no tables")
    store = context.settings.objects
    scans = [open_partition(item, partition, store) for partition in item.partitions]
    keys = [key for scan in scans for key in scan.keys]
    return list(store.read_urls(keys, life=_URL_LIFE))


def _open_output(name: str, path: Path, result: Mapping[str, Any]) -> Any:
    reported = result.get("outputs", {}).get(name, {}).get("rows")
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ProgramFailed(f"output {name}: the program wrote no Parquet file: {error}") from error
    if reported != file.metadata.num_rows:
        found = f"has {file.metadata.num_rows} rows, but the program reported {reported}"
        raise ProgramFailed(f"output {name}: the file {found}")
    return file


@dataclass
class _Program:
    """A running program. It ends with the attempt, together with its children."""

    context: OperatorContext
    path: Path
    directory: str

    def run(self, request: bytes) -> Mapping[str, Any]:
        """Send the request and return the result. Raises ProgramFailed, TaskCanceled."""
        process = subprocess.Popen(
            [str(self.path)],
            cwd=self.directory,
            env=self._make_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(process.pid, over), daemon=True)
        watch.start()
        try:
            code, answer = self._exchange(process, request)
        finally:
            over.set()
            _kill(process.pid)  # children that it started and did not end
            process.wait()
        self.context.check()
        return _read_result(code, answer)

    def _make_environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        return {**kept, "TMPDIR": self.directory, **self.context.secrets}

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> tuple[int, bytes]:
        assert process.stdin and process.stdout and process.stderr
        with ThreadPoolExecutor(2) as pool:
            logged = pool.submit(self._copy_log, process.stderr)
            sent = pool.submit(_send, process.stdin, request)
            answer = process.stdout.read(_MAX_RESULT + 1)
            if len(answer) > _MAX_RESULT:
                _kill(process.pid)
            code = process.wait()
            _kill(process.pid)  # a child may hold the other pipes open
            sent.result()
            logged.result()
        return code, answer

    def _copy_log(self, stream: IO[bytes]) -> None:
        for line in _read_lines(stream):
            self.context.log(line.decode("utf-8", "replace"))

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(_CHECK_SECONDS):
            if self.context.canceled.is_set():
                _kill(pid)
                return


def _read_lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(8192):
        yield line


def _send(stream: IO[bytes], request: bytes) -> None:
    with suppress(BrokenPipeError), stream:  # a program may end without reading its request
        stream.write(request)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, SIGKILL)


def _read_result(code: int, answer: bytes) -> Mapping[str, Any]:
    try:
        content: object = json.loads(answer) if answer.strip() else {}
    except ValueError as error:
        raise ProgramFailed(f"the program answered no JSON: {error}; exit code {code}") from error
    if not isinstance(content, dict):
        raise ProgramFailed("the program must answer a JSON object")
    result = cast("dict[str, Any]", content)
    failure = result.get("error")
    if code == 0 and failure is None:
        return result
    details = cast("dict[str, Any]", failure) if isinstance(failure, dict) else {}
    message = str(details.get("message", f"exit code {code}"))
    raise (ProgramFailed if details.get("retryable", True) else ProgramRefused)(message)
