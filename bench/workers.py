"""Compare functions in the sandbox with plain processes: warm invocations and cold starts."""

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import httpx

from bench.harness import Result, compare
from trace_etl.api.task.payload import TaskFunction
from trace_etl.dag.runtimes import shipped_runtimes
from trace_etl.sandbox import bubblewrap
from trace_etl.sandbox.broker.broker import AttemptIdentity, PlatformClients
from trace_etl.sandbox.broker.runtime_api import InvocationRequest
from trace_etl.sandbox.bubblewrap import BUNDLE, SOCKETS, Shown
from trace_etl.sandbox.node import find_node
from trace_etl.sandbox.process import SandboxedProcess
from trace_etl.worker.functions.bundle_programs import make_lambda_program, make_program
from trace_etl.worker.functions.environments import Environment

_PYTHON = "def handler(event, context):\n    return {'sum': sum(event['numbers'])}\n"
_NODE = "exports.handler = async (event) => ({ sum: event.numbers.reduce((a, b) => a + b, 0) });\n"
_EVENT = {"config": {}, "inputs": [], "outputs": [], "numbers": list(range(100))}
_PLAIN_PYTHON = "import json, rule, sys; rule.handler(json.load(open(sys.argv[1])), None)"
_PLAIN_NODE = (
    "require('./rule.js').handler(JSON.parse(require('fs').readFileSync(process.argv[1])))"
)
_FUNCTION = TaskFunction(bundle="rule", sha256="0" * 64, handler="rule.handler", bundle_url="")
_MAX_EXTRA_MS = 150.0
_CALLS = 30


def run() -> Iterable[Result]:
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as place:
        directory = Path(place)
        for language, name, code in (("python", "rule.py", _PYTHON), ("node", "rule.js", _NODE)):
            bundle = directory / language / "bundle"
            bundle.mkdir(parents=True)
            (bundle / name).write_text(code)
            (bundle.parent / "event.json").write_text(json.dumps(_EVENT))
            yield from _compare_language(language, bundle)


def _compare_language(language: str, bundle: Path) -> Iterable[Result]:
    plain = _plain_command(language)

    def call_plainly() -> float:
        command = [*plain, str(bundle.parent / "event.json")]
        return _time(lambda: subprocess.run(command, cwd=bundle, env={}, check=True))

    with _open_environment(bundle) as invoke:
        invoke()  # the first invocation starts the handler
        yield compare(
            f"workers_warm_invocation_{language}",
            lambda: statistics.median(_time(invoke) for _ in range(_CALLS)),
            call_plainly,
            unit="s",
            goal="<= 1.3",
            rounds=9,
        )
    yield compare(
        f"workers_cold_start_beyond_the_interpreter_{language}",
        lambda: 1000 * (_time(lambda: _start_cold(language, bundle)) - call_plainly()),
        lambda: _MAX_EXTRA_MS,
        unit="ms",
        goal="<= 1.0",
        rounds=9,
    )


def _plain_command(language: str) -> Sequence[str]:
    if language == "node":
        return [str(find_node()), "-e", _PLAIN_NODE]
    return [bubblewrap.PYTHON, "-c", _PLAIN_PYTHON]


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _start_cold(language: str, bundle: Path) -> None:
    """Run the function as the worker of functions does: a new sandbox for one task."""
    run = bundle.parent / "run"
    run.mkdir(exist_ok=True)
    shutil.copy(bundle.parent / "event.json", run)
    names = {"python": "ecs_udf_python", "node": "ecs_udf_ts"}
    program = make_program(_FUNCTION, bundle, shipped_runtimes().entries[names[language]])
    files = [Shown(bundle, BUNDLE), Shown(run, SOCKETS)]
    environment = {"TRACE_SOCKET": f"{SOCKETS}/broker.sock"}
    made = replace(program, environment=environment, files=files)
    ended = SandboxedProcess(made).wait()
    assert ended.exit_code == 0, ended.output.decode()


@contextmanager
def _open_environment(bundle: Path) -> Generator[Callable[[], None]]:
    """Start an environment, and return a function that invokes it once."""
    place = bundle.parent / "environment"
    shutil.copytree(bundle, place / "bundle")
    runtime = shipped_runtimes().entries["lambda"]
    program = make_lambda_program(_FUNCTION, bundle, runtime, timeout=300)
    event = json.dumps(_EVENT).encode()
    with httpx.Client(base_url="https://bench") as client:
        environment = Environment(
            place,
            program,
            PlatformClients(client, client),
            lambda program, on_output: SandboxedProcess(program, on_output=on_output),
        )

        def invoke() -> None:
            identity = AttemptIdentity(UUID(int=1), 1, UUID(int=2), lambda: "token")
            request = InvocationRequest(str(uuid4()), event, "rule", time.time() + 60)
            result = environment.invoke(request, identity, lambda part: None)
            environment.finish()
            assert not result.error, result.error

        yield invoke
        environment.kill()
