"""How often the Dispatcher's client repeats a call, against a real HTTP server."""

import http.server
import threading
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

import certifi
import pytest

from trace_etl.http.clients.dispatcher_client import DispatcherClient, Refused
from trace_etl.policy.retry import Backoff


class _Server(http.server.ThreadingHTTPServer):
    answers: list[int]
    calls = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = self.server.answers[min(self.server.calls, len(self.server.answers) - 1)]
        self.server.calls += 1
        body = b'{"status": "NotClaimed", "reason": "NotReady"}' if status == 200 else b"{}"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Generator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def _claim(server: _Server) -> str:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    backoff = Backoff.of_seconds(0.001, 0.002)
    client = DispatcherClient(url, Path(certifi.where()), lambda: "token", backoff)
    try:
        return client.claim(uuid4(), "w", threading.Event()).status
    finally:
        client.close()


def test_a_call_that_always_answers_500_is_given_up_with_the_cause(server: _Server) -> None:
    server.answers = [500]
    with pytest.raises(Refused, match="/internal/task-claim answered 500 5 times") as caught:
        _claim(server)
    assert (caught.value.status, caught.value.refusal) == (500, "dispatcher_failed")
    assert server.calls == 5


@pytest.mark.parametrize(
    "answers", [[500] * 4 + [200], [503] * 20 + [200], [500, 500, 503] * 4 + [200]]
)
def test_a_call_is_repeated_until_an_outage_ends(server: _Server, answers: list[int]) -> None:
    server.answers = answers
    assert _claim(server) == "NotClaimed"
    assert server.calls == len(answers)
