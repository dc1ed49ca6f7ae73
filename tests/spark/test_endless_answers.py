"""A node cannot fill the memory of a worker or hold a task for ever. HTTP only, no Spark."""

import gzip
import http.client
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trace_etl.spark.errors import ChainMismatch, DifferentChains
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.rpc import endpoint
from trace_etl.spark.evm.rpc.endpoint import Endpoint

LIMIT = 1 << 20
Answer = Callable[[BaseHTTPRequestHandler], None]


class Node:
    """Answers each request as the test says."""

    def __init__(self) -> None:
        node = self
        self.answer: Answer = lambda handler: None
        self.stop = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                node.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Generator[Node]:
    monkeypatch.setattr(endpoint, "_MAX_BYTES", LIMIT)
    monkeypatch.setattr(endpoint, "_PIECE", 1 << 16)
    made = Node()
    yield made
    made.stop.set()
    made.server.shutdown()
    made.server.server_close()


def send(content: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        try:
            handler.wfile.write(content)
        except OSError:
            handler.close_connection = True  # the client has left

    return answer


def post(node: Node) -> bytes:
    reader = Endpoint(node.url, timeout=30)
    try:
        return reader.post(b"{}").body
    finally:
        reader.close()


def test_an_answer_of_the_largest_size_is_read(node: Node) -> None:
    node.answer = send(b"x" * LIMIT)
    assert len(post(node)) == LIMIT
    node.answer = send(gzip.compress(b"x" * LIMIT), Content_Encoding="gzip")
    assert len(post(node)) == LIMIT


def test_gzip_content_of_several_members_is_read(node: Node) -> None:
    content = gzip.compress(b"one ") + gzip.compress(b"two")
    node.answer = send(content, Content_Encoding="gzip")
    assert post(node) == b"one two"


def test_gzip_content_of_very_many_members_is_refused(node: Node) -> None:
    node.answer = send(gzip.compress(b"") * 10_001, Content_Encoding="gzip")
    with pytest.raises(http.client.HTTPException, match="more than 10000 parts"):
        post(node)


@pytest.mark.parametrize("size", [b"-1", b"-100000"])
def test_a_chunk_of_negative_size_does_not_fill_the_memory(node: Node, size: bytes) -> None:
    """`HTTPResponse.read` would read all of it at once."""
    sent = [0]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        try:
            handler.wfile.write(size + b"\r\n")
            while sent[0] < 64 * LIMIT:
                sent[0] += handler.wfile.write(b"x" * LIMIT)
        except OSError:
            pass  # the client has left

    node.answer = answer
    with pytest.raises(http.client.HTTPException):
        post(node)
    assert sent[0] < 64 * LIMIT


@pytest.mark.parametrize("cut", [1, 9, -3])
def test_damaged_gzip_content_is_an_error(node: Node, cut: int) -> None:
    node.answer = send(gzip.compress(b"some content")[:cut], Content_Encoding="gzip")
    with pytest.raises(http.client.HTTPException, match="damaged gzip content"):
        post(node)


def test_a_larger_answer_is_refused(node: Node) -> None:
    node.answer = send(b"x" * (LIMIT + 1))
    with pytest.raises(http.client.HTTPException, match="more than 1 MiB"):
        post(node)


def test_a_small_answer_that_expands_too_much_is_refused(node: Node) -> None:
    bomb = gzip.compress(b" " * 100 * LIMIT, 9)
    assert len(bomb) < LIMIT
    node.answer = send(bomb, Content_Encoding="gzip")
    with pytest.raises(http.client.HTTPException, match="more than 1 MiB"):
        post(node)


def test_an_answer_that_ends_too_early_is_an_error(node: Node) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"short")
        handler.close_connection = True

    node.answer = answer
    with pytest.raises(http.client.IncompleteRead):
        post(node)


def test_an_answer_that_never_ends_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes before the timeout of the socket."""
    monkeypatch.setattr(endpoint, "_MAX_TIMEOUTS", 0.01)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not node.stop.wait(0.01):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return

    node.answer = answer
    with pytest.raises((http.client.HTTPException, OSError)):
        post(node)


def test_endpoints_of_different_chains_are_refused_without_transactions(node: Node) -> None:
    node.answer = send(b'{"id": 0, "result": "0x5"}')
    other = Node()
    other.answer = send(b'{"id": 0, "result": "0x1"}')
    source = RpcSource((node.url, other.url), tries=1)
    with (
        RangeReader(source, ("blocks",)) as reader,
        pytest.raises(DifferentChains, match=r"different chains: 5 \(127.*\), 1 \(127"),
    ):
        reader.chain_id()
    other.answer = send(b'{"id": 0, "result": "0x5"}')
    with RangeReader(source, ("blocks",)) as reader:
        assert reader.chain_id() == 5
    other.answer = send(b'{"id": 0, "result": "mainnet"}')
    with (
        RangeReader(RpcSource((other.url,), tries=1), ("blocks", "transactions")) as reader,
        pytest.raises(ChainMismatch, match=r"eth_chainId at .* answered 'mainnet'"),
    ):
        reader.chain_id()
    other.server.shutdown()
    other.server.server_close()
