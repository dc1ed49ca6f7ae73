"""Compare reads through the object endpoint with a plain static file server, both over TLS."""

import http.client
import ssl
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import httpx

from bench import lifecycle
from bench.bench_stack import BenchStack, start_stack
from bench.harness import Result, compare
from trace_etl.lite.processes.ports import free_port

SIZE = 128 * 1024 * 1024
ROUNDS = 5
_READ = 256 * 1024
_SERVER = """
import functools, http.server, ssl, sys
port, directory, cert, key = sys.argv[1:]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=directory)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), handler)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(cert, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def run() -> list[Result]:
    """Read one large object repeatedly, in alternating rounds."""
    with start_stack() as stack:
        lifecycle.deploy(stack)
        (task_id,) = lifecycle.seed(stack, 1)
        context = ssl.create_default_context(cafile=str(stack.ca))
        path, headers = _write_object(stack, task_id, context)
        environment = stack.environment(api_port=0, internal_port=0)
        stored = Path(environment["TRACE_OBJECTS_URL"].removeprefix("file://")) / path
        port = free_port()
        cert = [environment["TRACE_TLS_CERT"], environment["TRACE_TLS_KEY"]]
        command = [sys.executable, "-c", _SERVER, str(port), str(stored.parent), *cert]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                _wait(port, context)
                target = f"/v1/task/objects/{path}"
                return [
                    compare(
                        "objects_vs_file_server",
                        lambda: _measure(stack.internal_port, context, target, headers),
                        lambda: _measure(port, context, f"/{stored.name}", {}),
                        unit="MB/s",
                        goal=">= 0.5",
                        rounds=ROUNDS,
                    )
                ]
            finally:
                server.kill()


def _write_object(
    stack: BenchStack, task_id: str, context: ssl.SSLContext
) -> tuple[str, dict[str, str]]:
    url = f"https://127.0.0.1:{stack.internal_port}"
    with httpx.Client(base_url=url, verify=context, timeout=60, trust_env=False) as client:
        worker = {"X-Trace-Worker-Token": stack.worker_token.decode()}
        body = {"task_id": task_id, "worker_id": "bench"}
        claimed = client.post("/internal/task-claim", json=body, headers=worker).json()
        headers = {
            "X-Trace-Task-Capability": claimed["capability_token"],
            "X-Trace-Lease-Token": claimed["lease_token"],
        }
        ref = claimed["task"]["scratch_ref"]
        path = f"{ref['bucket']}/{ref['prefix']}{uuid4().hex}"
        reply = client.put(f"/v1/task/objects/{path}", content=bytes(SIZE), headers=headers)
        assert reply.status_code == 200, reply.text
        return path, headers


def _wait(port: int, context: ssl.SSLContext) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            http.client.HTTPSConnection("127.0.0.1", port, context=context).connect()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _measure(port: int, context: ssl.SSLContext, path: str, headers: dict[str, str]) -> float:
    """Return megabytes per second of one read over a new connection."""
    began = time.perf_counter()
    conn = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=120)
    conn.request("GET", path, headers=headers)
    reply = conn.getresponse()
    assert reply.status == 200, reply.status
    buffer, size = bytearray(_READ), 0
    while count := reply.readinto(buffer):
        size += count
    conn.close()
    assert size == SIZE, size
    return size / 1e6 / (time.perf_counter() - began)
