"""Every listener of the platform limits what a client that is not logged in can use."""

import asyncio
import contextlib
import gc
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvloop
from prometheus_client import REGISTRY

from support.services.console import running_console
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.services.query import running_query_service
from support.waiting import eventually
from trace_etl.devtools.devchain.rpc.httpd import listen
from trace_etl.http.metrics_server import start_metrics_server
from trace_etl.http.server.asgi_protocol import LimitedAsgiProtocol
from trace_etl.http.server.connection_limits import ConnectionLimits
from trace_etl.http.server.listeners import Listener, Tls, serve
from trace_etl.http.server.small_server import SmallHttpProtocol
from trace_etl.lite.processes.ports import free_port
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.app import make_app
from trace_etl.scheduler.cron_trigger import CronTrigger

LIMITS = ConnectionLimits(
    max_connections=24,
    max_connections_per_address=16,
    handshake_seconds=3,
    request_seconds=3,
    idle_seconds=3,
    send_seconds=3,
)
MAX_SECONDS = 120  # seconds; only a hanging listener takes that long
GET = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n"
RPC = (
    b"POST / HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 47\r\n\r\n"
    b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}'
)


@dataclass(frozen=True)
class Target:
    """A listener under test, with a request that it accepts and one whose body is too large."""

    name: str
    port: int
    ca: Path | None
    body_path: bytes
    body_limit: int
    good: bytes = GET
    refuses_body_with: tuple[bytes, ...] = (b"413",)
    headers: bytes = b"host: t\r\n"
    keeps_body: bool = False
    """Whether the listener itself collects the chunks of a body, without a framework."""

    @asynccontextmanager
    async def connect(
        self,
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        name = "127.0.0.1" if context else None
        opened = asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
        reader, writer = await asyncio.wait_for(opened, MAX_SECONDS)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def send_until_closed(self, request: bytes, limit: int) -> int:
        """Send a request again and again and read no answer. Returns how many bytes were sent."""
        sent = 0
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket())
            # The buffers of both sides are small then. By default they hold megabytes of answers.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
            sock.settimeout(MAX_SECONDS)
            sock.connect(("127.0.0.1", self.port))
            if self.ca:
                context = ssl.create_default_context(cafile=str(self.ca))
                sock = stack.enter_context(context.wrap_socket(sock, server_hostname="127.0.0.1"))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while sent < limit:
                    sock.sendall(request)
                    sent += len(request)
        return sent

    def post(self, headers: bytes) -> bytes:
        start = b"POST %b HTTP/1.1\r\n%bcontent-type: application/json\r\n"
        return start % (self.body_path, self.headers) + headers + b"\r\n\r\n"


@contextmanager
def in_thread(serving: Callable[[asyncio.Event], Awaitable[None]]) -> Generator[None]:
    """Run a listener in its own event loop."""
    loop, stop = uvloop.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serving(stop)))
    thread.start()
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join(MAX_SECONDS)
    loop.close()


@pytest.fixture(scope="module")
def targets(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Target]]:
    """Start every kind of listener, with small limits."""
    objects, ca = tmp_path_factory.mktemp("objects"), secrets.ca
    scheduler_port, metrics_port, chain_port = free_port(), free_port(), free_port()
    tls = Tls(secrets.directory / "tls" / "server.pem", secrets.directory / "tls" / "server.key")

    async def scheduler(stop: asyncio.Event) -> None:
        async with DispatcherApi("https://127.0.0.1:1", ca, secrets.directory / "user.jwt") as api:
            trigger = CronTrigger(api, timedelta(seconds=30), timedelta(seconds=90))
            listener = Listener(make_app(api, trigger), "127.0.0.1", scheduler_port)
            await serve([listener], tls=tls, stop=stop, limits=LIMITS)

    async def devchain(stop: asyncio.Event) -> None:
        async def answer(body: bytes) -> bytes:
            return b"x" * 300_000 if b"large" in body else body

        async with listen(answer, "127.0.0.1", chain_port, LIMITS):
            await stop.wait()

    with ExitStack() as stack:
        dsns = stack.enter_context(copied(templates))
        dispatcher = stack.enter_context(live(secrets, dsns, objects, http_limits=LIMITS))
        query = stack.enter_context(
            running_query_service(secrets, dsns, objects, http_limits=LIMITS)
        )
        console = stack.enter_context(running_console(dispatcher, http_limits=LIMITS))
        stack.enter_context(in_thread(scheduler))
        stack.enter_context(in_thread(devchain))
        start_metrics_server(metrics_port, REGISTRY, LIMITS)
        for port in (scheduler_port, metrics_port, chain_port):
            eventually(lambda port=port: accepts(port), "the listener starts")
        cfg, mib = dispatcher.cfg, 1024 * 1024
        hook = b"/v1/webhooks/d/j"
        yield [
            Target("user API", cfg.api_port, ca, b"/v1/dags", 2 * mib),
            Target("webhooks", cfg.api_port, ca, hook, mib, refuses_body_with=(b"401", b"413")),
            Target("task API", cfg.internal_port, ca, b"/v1/task/complete", mib, keeps_body=True),
            # It asks for the token before it says what is wrong with a body.
            Target(
                *("Query Service", query.cfg.query_port, ca, b"/v1/query", mib),
                refuses_body_with=(b"401",),
            ),
            Target("scheduler", scheduler_port, ca, b"/metrics", 1024, refuses_body_with=(b"405",)),
            Target(
                *("console", console.cfg.console_port, None, b"/session", 2 * mib),
                headers=b"host: %b\r\norigin: http://%b\r\n"
                % (2 * (urlsplit(console.url).netloc.encode(),)),
            ),
            Target("worker", metrics_port, None, b"/metrics", 1024, refuses_body_with=(b"405",)),
            Target("development chain", chain_port, None, b"/", 5 * mib, good=RPC),
        ]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), MAX_SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


async def on_all(targets: list[Target], check: Callable[[Target], Awaitable[None]]) -> None:
    """Run a check against all listeners concurrently, then check that each still answers."""

    async def one(target: Target) -> None:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await check(target)
                await answers(target)
        except Exception as error:
            raise AssertionError(f"{target.name}: {error!r}") from error

    async with asyncio.TaskGroup() as group:
        for target in targets:
            group.create_task(one(target))


async def answers(target: Target) -> None:
    async with target.connect() as (reader, writer):
        writer.write(target.good)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200"), target.name


async def status_of(reader: asyncio.StreamReader) -> bytes:
    """Return the status of the next answer; empty if the connection was reset or closed."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return (await reader.readline())[9:12]
    return b""


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes or resets the connection."""
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            received += data
    return received


async def keep_writing(writer: asyncio.StreamWriter, piece: bytes, pause: float = 0.0) -> int:
    """Write until the server closes the connection. Returns how many bytes were taken."""
    sent = 0
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while not writer.transport.is_closing():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(pause)
    return sent


HEADS = {
    "one header": b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n",
    "many headers": b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 40_000 + b"\r\n",
    "the request line": b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
async def test_a_large_head_is_refused(targets: list[Target], head: bytes) -> None:
    async def check(target: Target) -> None:
        async with target.connect() as (reader, writer):
            writer.write(head)
            assert await status_of(reader) == b"431"

    await on_all(targets, check)


ENDLESS = {
    "header": (b"GET /healthz HTTP/1.1\r\nx: ", b"y" * 4096),
    "request line": (b"GET /", b"y" * 4096),
    "headers": (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n" * 700),
    "chunk extension": (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1", b";x" * 2048),
    "trailer": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: ",
        b"y" * 4096,
    ),
}


@pytest.mark.parametrize(("start", "piece"), ENDLESS.values(), ids=ENDLESS)
async def test_an_endless_part_of_a_request_is_cut_off(
    targets: list[Target], start: bytes, piece: bytes
) -> None:
    async def check(target: Target) -> None:
        async with target.connect() as (reader, writer):
            writer.write(start)
            closed = asyncio.create_task(until_closed(reader))
            sending = asyncio.create_task(keep_writing(writer, piece, pause=0.01))
            # The listener may discard what arrives while the refusal is on its way.
            received = await closed
            sending.cancel()
            assert received[9:10] in (b"4", b""), received

    await on_all(targets, check)


async def test_a_malformed_body_gets_one_answer(targets: list[Target]) -> None:
    """The head is valid, so the request is being answered when the body turns out to be malformed."""

    async def check(target: Target) -> None:
        for headers, body in (
            (b"transfer-encoding: xchunked", b"0\r\n\r\n"),
            (b"transfer-encoding: chunked", b"0x2\r\n{}\r\n0\r\n\r\n"),
            (b"transfer-encoding: chunked", b"2\r\n{}\r\nz\r\n"),
        ):
            async with target.connect() as (reader, writer):
                writer.write(target.post(headers) + body)
                received = await until_closed(reader)
            assert received.count(b"HTTP/1.1 ") == 1 and received[9:10] == b"4", received

    await on_all(targets, check)


async def test_a_large_body_is_refused_whether_announced_or_not(targets: list[Target]) -> None:
    async def check(target: Target) -> None:
        async with target.connect() as (reader, writer):
            writer.write(target.post(b"content-length: %d" % (10 * target.body_limit)))
            writer.write(b" " * (target.body_limit + 1))
            assert await status_of(reader) in target.refuses_body_with
        async with target.connect() as (reader, writer):
            writer.write(target.post(b"transfer-encoding: chunked"))
            sending = asyncio.create_task(
                keep_writing(writer, b"8000\r\n" + b" " * 0x8000 + b"\r\n", pause=0.005)
            )
            assert await status_of(reader) in target.refuses_body_with
            await until_closed(reader)
            sending.cancel()

    await on_all(targets, check)


async def test_an_answer_before_the_end_of_a_body_announces_the_end_of_its_connection(
    targets: list[Target],
) -> None:
    """Most clients send a whole request before they read. They send the next one on the same connection."""

    async def check(target: Target) -> None:
        for size in (10, 3 * 1024 * 1024):
            async with target.connect() as (reader, writer):
                writer.write(target.post(b"content-length: %d" % size) + b" " * size)
                with contextlib.suppress(
                    ConnectionError
                ):  # a listener may close while it is sent to
                    await writer.drain()
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: (\d+)", head)
                assert length, head
                await reader.readexactly(int(length[1]))
                if b"connection: close" in head:
                    assert await until_closed(reader) == b""
                else:
                    writer.write(target.good)
                    assert await status_of(reader) == b"200", size

    await on_all(targets, check)


async def test_a_client_that_leaves_before_the_end_of_its_body_writes_nothing_to_the_log(
    targets: list[Target], caplog: pytest.LogCaptureFixture
) -> None:
    async def check(target: Target) -> None:
        for _ in range(20):
            async with target.connect() as (_, writer):
                writer.write(target.post(b"content-length: 100") + b"{")
                await writer.drain()
        await answers(target)

    await on_all(targets, check)
    assert not caplog.records


async def test_a_closed_connection_leaves_nothing_to_the_garbage_collector(
    targets: list[Target],
) -> None:
    """The Dispatcher collects rarely: cycles of closed connections would fill its memory."""

    async def check(target: Target) -> None:
        for request in (b"", GET[:20], target.good, target.post(b"content-length: 100") + b"{"):
            async with target.connect() as (_, writer):
                writer.write(request)
                await writer.drain()

    gc.collect()
    gc.disable()
    try:
        others = find_connections()  # of services that other tests share
        await on_all(targets, check)
        await asyncio.to_thread(eventually, lambda: find_connections() <= others)
    finally:
        gc.enable()


def find_connections() -> set[int]:
    kinds = (LimitedAsgiProtocol, SmallHttpProtocol)
    return {id(found) for found in gc.get_objects() if type(found) in kinds}


async def test_a_body_in_chunks_of_one_byte_takes_linear_time(targets: list[Target]) -> None:
    """The same chunks take about the same processor time in one body as in many small ones."""

    async def send(target: Target, chunks: int) -> None:
        async with target.connect() as (reader, writer):
            writer.write(target.post(b"transfer-encoding: chunked"))
            writer.write(b"1\r\n \r\n" * chunks + b"0\r\n\r\n")
            assert (await status_of(reader))[:1] in (b"2", b"4")

    await on_all(targets, lambda target: send(target, min(target.body_limit, 16 * 1024) - 1))
    for target in [target for target in targets if target.keeps_body]:
        spent: list[float] = []
        for bodies in (16, 1):
            before = time.process_time()
            for _ in range(bodies):
                await send(target, 256 * 1024 // bodies)
            spent.append(time.process_time() - before)
        # A body that is copied for each chunk takes more than five times as long.
        assert spent[1] < 3 * spent[0], target.name


SLOW = {
    "nothing": b"",
    "empty lines": b"\r\n",
    "a head": b"GET /healthz HTTP/1.1\r\nx: ",
    "a body": b"",
    "the second request": GET + b"GET /healthz HTTP/1.1\r\nx: ",
}


@pytest.mark.parametrize("what", SLOW)
async def test_a_client_that_takes_too_long_is_disconnected(
    targets: list[Target], what: str
) -> None:
    async def check(target: Target) -> None:
        async with target.connect() as (reader, writer):
            body = what == "a body"
            writer.write(target.post(b"content-length: 1000") if body else SLOW[what])
            sending = asyncio.create_task(asyncio.sleep(0))
            if what != "nothing":
                piece = b"\r\n" if what == "empty lines" else b" "
                sending = asyncio.create_task(keep_writing(writer, piece, pause=0.2))
            received = await until_closed(reader)
            sending.cancel()
            if what == "a head":
                assert received.startswith(b"HTTP/1.1 408")

    await on_all(targets, check)


async def test_an_idle_connection_is_closed_after_a_request(targets: list[Target]) -> None:
    async def check(target: Target) -> None:
        async with target.connect() as (reader, writer):
            writer.write(target.good)
            assert (await until_closed(reader)).startswith(b"HTTP/1.1 200")

    await on_all(targets, check)


async def test_a_client_that_does_not_begin_tls_is_disconnected(targets: list[Target]) -> None:
    async def check(target: Target) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        await until_closed(reader)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    await on_all(targets, check)


async def test_idle_connections_make_room_for_new_ones(targets: list[Target]) -> None:
    async def check(target: Target) -> None:
        idle: list[socket.socket] = []
        try:
            for _ in range(3 * LIMITS.max_connections):
                idle.append(socket.create_connection(("127.0.0.1", target.port), MAX_SECONDS))
            await answers(target)
            closed = [await asyncio.to_thread(_is_closed, sock) for sock in idle]
            assert sum(closed) >= len(idle) - LIMITS.max_connections_per_address
        finally:
            for sock in idle:
                sock.close()

    # One after the other: webhooks and the user API share a listener.
    for target in targets:
        await on_all([target], check)


def _is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.01)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


async def test_a_client_that_does_not_read_is_disconnected(targets: list[Target]) -> None:
    large = {"development chain": RPC.replace(b"chainId", b"large  "), "worker": b"GET /metrics"}

    async def check(target: Target) -> None:
        request = large.get(target.name, b"GET /openapi.json")
        if request.startswith(b"GET"):
            request += b" HTTP/1.1\r\n%b\r\n" % target.headers
        limit = 64 * 1024 * 1024
        assert await asyncio.to_thread(target.send_until_closed, request, limit) < limit

    await on_all(targets, check)


FEW_DESCRIPTORS = """
import os, resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
occupied = [os.dup(0) for _ in range(int(sys.argv.pop(1)))]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
CHAIN, CONSOLE = "trace_etl.devtools.devchain", "trace_etl.console"


@pytest.mark.parametrize(
    ("module", "good"),
    # The Dispatcher, the Query Service and the scheduler use the same code as the console.
    [pytest.param(CHAIN, RPC, id="development chain"), pytest.param(CONSOLE, GET, id="console")],
)
@pytest.mark.parametrize(
    ("occupied", "idle", "event"),
    [(0, 130, "connections_limited_by_open_files"), (80, 60, "accept_failed")],
)
def test_a_process_with_few_descriptors_answers_beside_many_idle_connections(
    module: str, good: bytes, occupied: int, idle: int, event: str
) -> None:
    port = free_port()
    limited = [sys.executable, "-c", FEW_DESCRIPTORS, str(occupied), module]
    options = ["--port", str(port), "--length", "2"] if module == CHAIN else []
    settings = {"TRACE_API_URL": "https://127.0.0.1:1", "TRACE_QUERY_URL": "https://127.0.0.1:1"}
    environment = {**os.environ, **settings, "TRACE_CONSOLE_PORT": str(port)}
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        process = stack.enter_context(
            subprocess.Popen([*limited, *options], stdout=log, stderr=log, env=environment)
        )
        stack.callback(process.terminate)
        eventually(lambda: accepts_request(port, good), "the process listens")
        for _ in range(idle):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), MAX_SECONDS))
        assert accepts_request(port, good)
        log.seek(0)
        assert event in log.read()


def accepts_request(port: int, request: bytes) -> bool:
    """Whether a new connection gets an answer to the request."""
    try:
        with socket.create_connection(("127.0.0.1", port), MAX_SECONDS) as sock:
            sock.sendall(request)
            return sock.recv(100).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False
