"""The broker of a sandbox: which requests it makes for a function, and with what."""

import json
import re
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from support.functions import OBJECT_CALLS
from support.script_process import script_process
from support.waiting import eventually
from trace_etl.api.task.credentials import OBJECTS_PATH
from trace_etl.sandbox.broker.broker import (
    MAX_BODY,
    MAX_CALL,
    AttemptIdentity,
    Broker,
    PlatformClients,
)
from trace_etl.sdk.connection import BrokerConnection, CallFailed

TASK, LEASE = UUID(int=1), UUID(int=2)
FENCE = {"task_id": str(TASK), "attempt": 3, "lease_token": str(LEASE)}


class Services:
    """Records the requests that reach the platform."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, httpx.Request]] = []
        self.status = 200

    def client(self, name: str) -> httpx.Client:
        def answer(request: httpx.Request) -> httpx.Response:
            request.read()
            self.requests.append((name, request))
            extra = OBJECT_CALLS if request.url.path == "/v1/task/credentials" else {}
            return httpx.Response(self.status, json={"service": name, **extra})

        return httpx.Client(base_url="https://platform", transport=httpx.MockTransport(answer))


@pytest.fixture
def services() -> Services:
    return Services()


@pytest.fixture
def broker(services: Services, tmp_path: Path) -> Generator[Broker]:
    upstream = PlatformClients(services.client("dispatcher"), services.client("query"))
    identity = AttemptIdentity(TASK, 3, LEASE, lambda: "the-token")
    made = Broker(tmp_path / "broker.sock", upstream, identity)
    yield made
    made.close()


@pytest.fixture
def connection(broker: Broker) -> BrokerConnection:
    return BrokerConnection(str(broker.path))


def test_a_query_goes_to_the_query_service_with_the_token(
    connection: BrokerConnection, services: Services
) -> None:
    assert connection.call("/v1/task/query", {"sql": "SELECT 1"}) == {"service": "query"}
    [(_, request)] = services.requests
    assert json.loads(request.content) == {"sql": "SELECT 1"}
    assert request.headers["x-trace-task-capability"] == "the-token"


@pytest.mark.parametrize("name", ["heartbeat", "events", "buffer-publish", "credentials"])
def test_the_fence_of_a_call_is_always_that_of_this_attempt(
    name: str, connection: BrokerConnection, services: Services
) -> None:
    other = {"task_id": str(UUID(int=9)), "attempt": 99, "lease_token": str(UUID(int=8))}
    false = {**other, "isolation": "lambda"}  # only the worker knows how the function is isolated
    connection.call(f"/v1/task/{name}", {**false, "x": 1})
    [(service, request)] = services.requests
    assert (service, json.loads(request.content)) == ("dispatcher", {**FENCE, "x": 1})


def test_headers_of_the_function_do_not_reach_the_platform(
    broker: Broker, services: Services
) -> None:
    send(
        broker,
        b"GET /v1/task/objects/bucket/key HTTP/1.1\r\nHost: x\r\nX-Trace-Task-Capability: stolen\r\n"
        b"X-Trace-Worker-Token: stolen\r\nAuthorization: Bearer stolen\r\nRange: bytes=0-1\r\n\r\n",
    )
    assert not any("stolen" in str(request.headers) for _, request in services.requests)
    _, request = services.requests[-1]
    assert request.headers["range"] == "bytes=0-1"
    assert request.headers["x-trace-lease-token"] == str(LEASE)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/task/complete"),
        ("POST", "/internal/task-claim"),
        ("GET", "/internal/jwks/task"),
        ("GET", "/internal/task-fetch"),
        ("GET", "/v1/tasks"),
        ("POST", "/v1/query"),
        ("GET", "/v1/task/query"),
        ("DELETE", "/v1/task/objects/a/b"),
        ("POST", "/v1/task/query/../../internal/task-claim"),
        ("POST", "/v1/task/query?x=1"),
        ("GET", "/v1/task/objects/../../../internal/jwks/task"),
        ("GET", "/v1/task/objects/%2e%2e/%2e%2e/x"),
        ("GET", "/v1/task/objects//etc/passwd"),
        ("GET", "/v1/task/objects/a#b"),
        ("GET", "/metrics"),
        ("GET", "/healthz"),
    ],
)
def test_other_calls_are_refused(
    method: str, path: str, connection: BrokerConnection, services: Services
) -> None:
    with pytest.raises(CallFailed) as refusal:
        connection.send(method, path, b"{}" if method == "POST" else None)
    assert refusal.value.code in ("forbidden", "invalid")
    assert services.requests == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT 127.0.0.1:5432 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //evil/v1/task/objects/a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 20\r\n\r\n{}",
        b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST /internal/task-claim HTTP/1.1\r\n\r\n",
        b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nX: a\rb\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/task/query HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}",
        b"POST /v1/task/query HTTP/1.1\r\nHost: x\nX-Other: y\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /" + b"a" * 100_000,
        b"\x16\x03\x01 not http",
    ],
)
def test_requests_that_can_be_read_in_two_ways_are_refused(
    request_bytes: bytes, broker: Broker, services: Services
) -> None:
    assert send(broker, request_bytes).split(b" ")[1] in (b"400", b"403")
    assert services.requests == []


def test_a_pipelined_request_is_checked_like_the_first(broker: Broker, services: Services) -> None:
    good = b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    bad = b"POST /internal/task-claim HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    bare = b"POST /v1/task/query HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}"
    with_lines = b"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n{\n\n}"
    assert b"HTTP/1.1 400" in send(broker, with_lines + bare)
    assert [name for name, _ in services.requests] == ["query"]
    services.requests.clear()
    answer = send(broker, good + bad)
    assert b"HTTP/1.1 200" in answer and b"HTTP/1.1 403" in answer
    assert [name for name, _ in services.requests] == ["query"]


def test_a_body_over_the_limit_is_refused(broker: Broker, services: Services) -> None:
    head = f"POST /v1/task/query HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    assert b" 413 " in send(broker, head.encode() + b"x" * (MAX_BODY + 1))
    assert services.requests == []


def test_calls_that_need_too_much_memory_together_are_refused(broker: Broker) -> None:
    start = "POST /v1/task/events HTTP/1.1\r\nHost: x\r\nContent-Length: "
    head = f"{start}{MAX_CALL}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(4):  # each holds a body whose last byte is missing
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(broker.path))
            client.sendall(head.encode() + b" " * (MAX_CALL - 1))
        eventually(lambda: b" 429 " in send(broker, head.encode() + b" " * MAX_CALL))
    # The broker notices the end of the others a moment later.
    small = f'{start}14\r\n\r\n{{"events": []}}'.encode()
    eventually(lambda: b" 200 " in send(broker, small))


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"x": NaN}', b"[]", b"{"])
def test_a_call_whose_body_is_not_a_json_object_is_refused(
    body: bytes, connection: BrokerConnection, services: Services
) -> None:
    with pytest.raises(CallFailed, match="is not a JSON object"):
        connection.send("POST", "/v1/task/events", body)
    assert services.requests == []


_MIB = 1 << 20
_OBJECT_MIB = 192


class _LargeObjects(BaseHTTPRequestHandler):
    """A platform whose objects are large. It reads a body only when all of them have arrived."""

    protocol_version = "HTTP/1.1"
    all_arrived = threading.Barrier(8)

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path.endswith("/chunks"):
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(_OBJECT_MIB * _MIB))
        self.end_headers()
        is_chunked = self.path.endswith("/chunks")
        for _ in range(_OBJECT_MIB):
            head, end = (b"%x\r\n" % _MIB, b"\r\n") if is_chunked else (b"", b"")
            self.wfile.write(head + bytes(_MIB) + end)
        if is_chunked and not self.path.endswith("/cut/chunks"):
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def do_PUT(self) -> None:
        self.all_arrived.wait()
        left = int(self.headers["Content-Length"])
        while left and (part := self.rfile.read(min(left, _MIB))):
            left -= len(part)
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(OBJECT_CALLS)

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def large_objects() -> Generator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _LargeObjects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


_BROKER_PROCESS = """
import re, ssl, sys
from pathlib import Path
from uuid import UUID
import httpx
from trace_etl.http.clients.thread_safe_transport import ThreadSafeTransport
from trace_etl.sandbox.broker.broker import AttemptIdentity, Broker, PlatformClients

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
"""


def test_a_hostile_function_does_not_fill_the_memory_of_the_worker(tmp_path: Path) -> None:
    """It reads large objects and sends many large bodies at once."""
    path = tmp_path / "broker.sock"
    with large_objects() as url, script_process(_BROKER_PROCESS) as worker:
        start = """
        tls = ssl.create_default_context()
        client = httpx.Client(base_url=sys.argv[1], transport=ThreadSafeTransport(tls))
        identity = AttemptIdentity(UUID(int=1), 1, UUID(int=2), lambda: "token")
        broker = Broker(Path(sys.argv[2]), PlatformClients(client, client), identity)
        print(peak())
        """
        before = int(worker.run(start, url, path))

        def put(number: int) -> bytes:
            connection = BrokerConnection(str(path))
            return connection.send("PUT", f"{OBJECTS_PATH}a/{number}", bytes(MAX_BODY)).content

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(put, range(8))) == [b"{}"] * 8
        for name in ("whole", "chunks"):
            assert read_length(path, f"{OBJECTS_PATH}a/{name}") == _OBJECT_MIB * _MIB
        assert int(worker.run("print(peak())")) - before < 64


def test_an_answer_that_the_platform_cuts_off_is_not_complete(tmp_path: Path) -> None:
    with large_objects() as url, httpx.Client(base_url=url) as client:
        identity = AttemptIdentity(TASK, 3, LEASE, lambda: "the-token")
        broker = Broker(tmp_path / "broker.sock", PlatformClients(client, client), identity)
        with pytest.raises(CallFailed, match="IncompleteRead"):
            BrokerConnection(str(broker.path)).send("GET", f"{OBJECTS_PATH}a/cut/chunks")
        broker.close()


def read_length(path: Path, target: str) -> int:
    """Read an object in pieces. Returns its length."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"GET {target} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        with client.makefile("rb") as answer:
            while re.fullmatch(rb"\s*", answer.readline()) is None:
                pass
            return sum(len(part) for part in iter(lambda: answer.read(_MIB), b""))


def test_published_rows_are_counted_when_they_are_accepted(
    broker: Broker, connection: BrokerConnection, services: Services
) -> None:
    batch = {"dataset_uuid": "d", "record_count": 5, "batch_size_bytes": 70}
    connection.call("/v1/task/buffer-publish", batch)
    services.status = 409
    with pytest.raises(CallFailed):
        connection.call("/v1/task/buffer-publish", batch)
    assert (broker.published["d"].rows, broker.published["d"].bytes) == (5, 70)


def test_a_closed_broker_answers_nothing(broker: Broker, connection: BrokerConnection) -> None:
    broker.close()
    with pytest.raises(CallFailed, match="unreachable"):
        connection.call("/v1/task/query", {})


def send(broker: Broker, content: bytes) -> bytes:
    """Send bytes and return everything that the broker answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(broker.path))
        try:
            client.sendall(content)
            client.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the broker has refused and closed
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer
