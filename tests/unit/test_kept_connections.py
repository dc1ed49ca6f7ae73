"""Calls on connections that are kept, against a real server."""

import http.server
import ssl
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from trace_etl.http.clients.kept_connections import KeptConnections, NoAnswer
from trace_etl.lite.processes.ports import free_port

TLS = ssl.create_default_context()


class _Server(http.server.ThreadingHTTPServer):
    connections = 0
    together: threading.Barrier | None = None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if body == b"break":
            self.close_connection = True
            return
        if self.server.together is not None:
            self.server.together.wait(120)
        self.close_connection = body == b"close"  # after the answer, without saying so
        self.send_response(201)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Generator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def connect(server: _Server) -> KeptConnections:
    return KeptConnections(f"http://127.0.0.1:{server.server_address[1]}", TLS)


def call(connections: KeptConnections, body: str) -> tuple[int, bytes]:
    return connections.call("POST", "/x", body, {"X-Header": "é"}, 120)


def test_a_connection_is_used_again(server: _Server) -> None:
    with closing(connect(server)) as connections:
        assert [call(connections, "one"), call(connections, "two")] == [
            (201, b"one"),
            (201, b"two"),
        ]
    assert server.connections == 1


def test_a_connection_that_the_server_has_closed_is_not_used_again(server: _Server) -> None:
    with closing(connect(server)) as connections:
        call(connections, "close")
        [idle] = connections._idle
        assert idle.sock is not None
        assert idle.sock.recv(1, 2) == b""  # wait for the end, and leave it there (MSG_PEEK)
        assert call(connections, "two") == (201, b"two")
    assert server.connections == 2


def test_calls_at_the_same_time_have_connections_of_their_own(server: _Server) -> None:
    server.together = threading.Barrier(4)
    with closing(connect(server)) as connections, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: call(connections, f"{n}"), range(4)))
    assert [body for _, body in answers] == [b"0", b"1", b"2", b"3"]
    assert server.connections == 4


def test_a_call_that_may_have_arrived_is_told_from_one_that_has_not(server: _Server) -> None:
    with closing(connect(server)) as connections:
        with pytest.raises(NoAnswer) as broken:
            call(connections, "break")
        assert broken.value.may_have_arrived
    nowhere = KeptConnections(f"http://127.0.0.1:{free_port()}", TLS)
    with pytest.raises(NoAnswer) as refused:
        call(nowhere, "one")
    assert not refused.value.may_have_arrived
