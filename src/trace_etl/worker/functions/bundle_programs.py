"""How the function of a bundle is started: a native program, a Python handler or a Node handler."""

from dataclasses import replace
from pathlib import Path

from trace_etl.api.task.payload import TaskFunction
from trace_etl.dag.runtimes import Runtime
from trace_etl.model.errors import TraceError
from trace_etl.sandbox import bubblewrap
from trace_etl.sandbox.broker import runtime_api
from trace_etl.sandbox.bubblewrap import BUNDLE, CODE, MODULES, NODE, NODE_MODULES, SOCKETS
from trace_etl.sandbox.limits import MIB, Limits
from trace_etl.sandbox.process import Program

BOOTSTRAP = "bootstrap"
"""A bundle with a program of this name is native, whatever its runtime: the program runs instead of a handler."""
_EVENT = f"{SOCKETS}/event.json"
_HEAP_SHARE = 0.75
"""The part of the memory limit that V8 uses for objects. The rest is for code, buffers and stacks."""
_LIFE = 3600.0
"""Seconds after which an environment ends. One whose first invocation may take longer has time for it."""
_START_SECONDS = 60.0
_PYTHON_CLIENT = ("-u", f"{MODULES}/trace_etl/sdk/lambda_client.py", BUNDLE)
_NODE_CLIENT = (f"{NODE_MODULES}/trace-etl/lambda_client.js", BUNDLE)
NODE_ENDINGS = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
_OFFICIAL_NODE = "node_modules/aws-lambda-ric/index.mjs"


class BundleRefused(TraceError, code="bundle_refused"):
    """The bundle is missing, is not the one that was pushed, or does not fit its runtime."""


def make_program(function: TaskFunction, bundle: Path, runtime: Runtime) -> Program:
    """Return the command and the limits of a function, without environment. Raises BundleRefused."""
    limits = _make_limits(runtime)
    if (bundle / BOOTSTRAP).is_file():
        return _make_native_program(limits)
    if runtime.language == "native":
        raise BundleRefused(
            f"the bundle has no program `{BOOTSTRAP}`, which its runtime starts; add it"
        )
    if "." not in function.handler:
        rule = f"must be `module.function`, or the bundle must have the program `{BOOTSTRAP}`"
        raise BundleRefused(f"handler {function.handler!r} {rule}")
    arguments = [function.handler, BUNDLE, _EVENT]
    if runtime.language == "node":
        command = [*node_command(runtime), f"{NODE_MODULES}/trace-etl/bootstrap.js", *arguments]
        return Program(command, limits=replace(limits, reserves_memory=True), uses_node=True)
    script = f"{MODULES}/trace_etl/sdk/bootstrap.py"
    return Program([bubblewrap.PYTHON, "-I", "-u", script, *arguments], limits=limits)


def node_command(runtime: Runtime) -> list[str]:
    """Return the start of a command line: Node, with a heap that fits the memory limit."""
    return [NODE, f"--max-old-space-size={int(runtime.memory_mib * _HEAP_SHARE)}"]


def make_lambda_program(
    function: TaskFunction, bundle: Path, runtime: Runtime, timeout: float
) -> Program:
    """Return the program of a Lambda environment, which serves many invocations. Raises BundleRefused.

    An official runtime client in the bundle comes first, then the client of the SDK.
    """
    life = max(_LIFE, timeout + _START_SECONDS)
    limits = replace(_make_limits(runtime), wall_seconds=life)
    program = _find_lambda_program(function, bundle, runtime, limits)
    environment = {
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{runtime_api.PORT}",
        "_HANDLER": function.handler,
        "LAMBDA_TASK_ROOT": BUNDLE,
        "LAMBDA_RUNTIME_DIR": CODE,
        "AWS_LAMBDA_FUNCTION_NAME": function.bundle,
        "AWS_LAMBDA_FUNCTION_VERSION": function.sha256[:12],
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(runtime.memory_mib),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.bundle}",
        "AWS_LAMBDA_LOG_STREAM_NAME": function.sha256[:12],
        "PYTHONPATH": f"{BUNDLE}:{MODULES}",
        "PYTHONUNBUFFERED": "1",
        "TZ": ":UTC",
        "TRACE_SOCKET": f"{SOCKETS}/broker.sock",
    }
    listen = {"port": runtime_api.PORT, "control": f"{SOCKETS}/control.sock"}
    return replace(program, environment=environment, directory=BUNDLE, listen=listen)


def _find_lambda_program(
    function: TaskFunction, bundle: Path, runtime: Runtime, limits: Limits
) -> Program:
    if (bundle / BOOTSTRAP).is_file():
        return _make_native_program(limits)
    handler, _, _ = function.handler.rpartition(".")
    if (bundle / f"{handler}.py").is_file():
        is_official = (bundle / "awslambdaric").is_dir()
        client = ["-m", "awslambdaric", function.handler] if is_official else [*_PYTHON_CLIENT]
        return Program([bubblewrap.PYTHON, *client], limits=limits)
    if any((bundle / f"{handler}{ending}").is_file() for ending in NODE_ENDINGS):
        is_official = (bundle / _OFFICIAL_NODE).is_file()
        official = [f"{BUNDLE}/{_OFFICIAL_NODE}", function.handler]
        command = [*node_command(runtime), *(official if is_official else _NODE_CLIENT)]
        return Program(command, limits=replace(limits, reserves_memory=True), uses_node=True)
    files = f"{handler or 'MODULE'}.py, {handler or 'MODULE'}.js or the program `{BOOTSTRAP}`"
    raise BundleRefused(
        f"handler {function.handler!r}: the bundle has no {files}; add it, or correct the handler"
    )


def _make_limits(runtime: Runtime) -> Limits:
    return Limits(
        memory_bytes=runtime.memory_mib * MIB,
        processes=runtime.processes,
        temporary_bytes=runtime.temporary_mib * MIB,
    )


def _make_native_program(limits: Limits) -> Program:
    # Go, among others, reserves more memory than it uses.
    return Program([f"{BUNDLE}/{BOOTSTRAP}"], limits=replace(limits, reserves_memory=True))
