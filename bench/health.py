"""Measure `/healthz` by the clock while a Dispatcher gets damaged bytes and random calls.

A small TLS server in a process of its own answers the same probes at the same time. Its waits are what
this machine adds: the slowest one is added to the limit of 100 ms.
"""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from bench import lifecycle
from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, percentile, show_progress
from trace_etl.lite.processes.ports import free_port

SECONDS = 30.0
INTERVAL = 0.02
LIMIT_MS = 100.0
_TESTS = Path(__file__).parents[1] / "tests"
_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n"
_FLOOR = """
import asyncio, ssl, sys, uvloop
port, cert, key = sys.argv[1:]
answer = b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\n{}"
async def serve(reader, writer):
    while await reader.readline():
        while await reader.readline() != b"\\r\\n": pass
        writer.write(answer)
async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(serve, "127.0.0.1", int(port), ssl=context)
    print("ready", flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


def run() -> Iterator[Result]:
    """Compare the slowest answer with its limit, and the 99th percentile with the small server's."""
    with start_stack() as stack, _start_floor(stack) as floor:
        lifecycle.deploy(stack)
        with _start_load(stack):
            ports = (stack.api_port, stack.internal_port, floor)
            user, task, small = uvloop.run(_probe_all(stack, ports))
    late = [1000 * percentile([*user, *task], 0.99), 1000 * percentile(small, 0.99)]
    slowest, limit = 1000 * max(*user, *task), LIMIT_MS + 1000 * max(small)
    show_progress(
        f"slowest of {len(small)} probes: user API {1000 * max(user):.0f} ms, task API "
        f"{1000 * max(task):.0f} ms, small server {1000 * max(small):.0f} ms"
    )
    yield Result("health_under_fuzzing_slowest", slowest, limit, "ms", slowest / limit, "<= 1.0")
    yield Result("health_under_fuzzing_p99", *late, "ms", late[0] / late[1], "<= 5")


async def _probe_all(stack: BenchStack, ports: tuple[int, ...]) -> list[list[float]]:
    context = ssl.create_default_context(cafile=str(stack.ca))
    return await asyncio.gather(*(_probe(port, context) for port in ports))


async def _probe(port: int, context: ssl.SSLContext) -> list[float]:
    """Return the seconds of each answer over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    waits: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < deadline:
        writer.write(_REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(INTERVAL)
    writer.close()
    return waits


@contextmanager
def _start_floor(stack: BenchStack) -> Generator[int]:
    port, environment = free_port(), stack.environment(api_port=0, internal_port=0)
    files = [environment["TRACE_TLS_CERT"], environment["TRACE_TLS_KEY"]]
    command = [sys.executable, "-c", _FLOOR, str(port), *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield port
        finally:
            server.kill()


@contextmanager
def _start_load(stack: BenchStack) -> Generator[None]:
    """Send damaged bytes and generated calls to both listeners. Fails after an answer of 500 or more."""
    target = stack.directory / "fuzz.json"
    headers = {
        "authorization": f"Bearer {stack.user_token}",
        "x-trace-worker-token": stack.worker_token.decode(),
    }
    ports = {"api_port": stack.api_port, "internal_port": stack.internal_port}
    target.write_text(json.dumps({**ports, "ca": str(stack.ca), "headers": headers}))
    with subprocess.Popen(
        [sys.executable, "-m", "support.fuzz.fuzz_load", str(target)],
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as load:
        assert load.stdin is not None and load.stdout is not None
        if load.stdout.readline() != "ready\n":
            raise RuntimeError("the load could not be generated")
        yield
        load.stdin.close()
        summary = json.loads(load.stdout.read())
    show_progress(f"{summary['sent']:,} damaged or random requests were sent")
    if summary["server_errors"]:
        raise RuntimeError(f"server errors: {summary['server_errors']}")
