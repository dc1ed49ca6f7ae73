"""The development chain's HTTP server, tested at the byte level."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from trace_etl.devtools.devchain import DevChain, RunningServer, start_server

CALL = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":"0x7a69"}'
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with start_server(DevChain(seed=7, length=20)) as running:
        yield running


def _connect(server: RunningServer) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def _exchange(server: RunningServer, *chunks: bytes) -> bytes:
    """Send chunks and a last request that closes the connection, and read all responses."""
    with _connect(server) as connection:
        for chunk in (*chunks, b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
            connection.sendall(chunk)
        received = b""
        while data := connection.recv(65_536):
            received += data
        return received


def _request(body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST / HTTP/1.1", b"Host: x", b"Content-Type: application/json", *headers)
    return b"\r\n".join((*lines, b"Content-Length: %d" % len(body), b"", body))


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_post_is_allowed(server: RunningServer, method: str) -> None:
    answer = httpx.request(method, server.url)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"


def test_another_path_is_not_found(server: RunningServer) -> None:
    assert httpx.post(server.url + "/rpc", content=CALL, headers=JSON).status_code == 404


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_media_type_is_unsupported(server: RunningServer, media: str) -> None:
    answer = httpx.post(server.url, content=CALL, headers={"Content-Type": media})
    assert answer.status_code == 415


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_accepted_with_parameters_and_in_any_case(
    server: RunningServer, media: str
) -> None:
    answer = httpx.post(server.url, content=CALL, headers={"Content-Type": media})
    assert (answer.status_code, answer.content) == (200, ANSWER)
    assert answer.headers["Content-Type"] == "application/json"


def test_a_body_over_the_limit_is_too_large_whether_announced_or_not(
    server: RunningServer,
) -> None:
    body = b" " * (5 * 1024 * 1024 + 1)
    assert httpx.post(server.url, content=body, headers=JSON).status_code == 413
    unannounced = (body[i : i + 65_536] for i in range(0, len(body), 65_536))
    assert httpx.post(server.url, content=unannounced, headers=JSON).status_code == 413


def test_a_refusal_reaches_a_client_that_sends_everything_before_it_reads(
    server: RunningServer,
) -> None:
    body = b" " * (20 * 1024 * 1024)
    assert _exchange(server, _request(body)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: ten\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_malformed_http_is_a_bad_request(server: RunningServer, request_bytes: bytes) -> None:
    assert _exchange(server, request_bytes).startswith(b"HTTP/1.1 400 ")


def test_an_upgrade_is_refused(server: RunningServer) -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert _exchange(server, upgrade).startswith(b"HTTP/1.1 405 ")


def test_pipelined_requests_are_answered_one_by_one_in_order(server: RunningServer) -> None:
    calls = [CALL.replace(b'"id":1', b'"id":%d' % n) for n in range(100)]
    received = _exchange(server, b"".join(map(_request, calls)))
    positions = [received.index(b'"id":%d,' % n) for n in range(100)]
    assert positions == sorted(positions)
    assert received.count(b"HTTP/1.1 200 OK") == 100


def test_a_good_request_before_a_bad_one_is_answered(
    server: RunningServer,
) -> None:
    received = _exchange(server, _request(CALL) + b"GET / HTTP/1.1\r\n\r\n")
    assert received.index(ANSWER) < received.index(b"HTTP/1.1 405 ")


def test_a_request_may_arrive_byte_by_byte(server: RunningServer) -> None:
    request = _request(CALL)
    pieces = (request[i : i + 1] for i in range(len(request)))
    assert ANSWER in _exchange(server, *pieces)


def test_a_chunked_body_is_reassembled(server: RunningServer) -> None:
    pieces = (CALL[i : i + 7] for i in range(0, len(CALL), 7))
    assert httpx.post(server.url, content=pieces, headers=JSON).content == ANSWER


def test_expect_100_continue_is_answered(server: RunningServer) -> None:
    request = _request(CALL, b"Expect: 100-continue")
    with _connect(server) as connection:
        connection.sendall(request.removesuffix(CALL))
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(CALL)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_is_kept_until_the_client_asks_to_close_it(server: RunningServer) -> None:
    with _connect(server) as connection:
        for _ in range(3):
            connection.sendall(_request(CALL))
            assert b"connection: close" not in connection.recv(65_536)
        connection.sendall(_request(CALL, b"Connection: close"))
        received = b""
        while data := connection.recv(65_536):
            received += data
        assert b"connection: close" in received


def test_the_server_keeps_answering_after_a_client_disconnects(server: RunningServer) -> None:
    for _ in range(20):
        with _connect(server) as connection:
            connection.sendall(_request(CALL)[:-5])
    assert httpx.post(server.url, content=CALL, headers=JSON).content == ANSWER


def test_a_slow_reader_receives_a_large_answer_completely() -> None:
    chain = DevChain(seed=7, length=60, txs_per_block=100)
    batch = b"[%b]" % b",".join(
        b'{"jsonrpc":"2.0","id":%d,"method":"eth_getBlockReceipts","params":["0x%x"]}' % (n, n)
        for n in range(60)
    )
    with start_server(chain) as running, _connect(running) as connection:
        connection.sendall(_request(batch) + _request(CALL))
        received = bytearray()
        while not received.endswith(ANSWER):
            data = connection.recv(4_096)
            assert data
            received += data
    assert len(received) > 5_000_000
