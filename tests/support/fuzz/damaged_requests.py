"""HTTP requests with random damage, sent as raw bytes over TLS."""

import contextlib
import random
import socket
import ssl
from collections.abc import Generator

STATUS = b"HTTP/1.1 "
GOOD = [
    b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n",
    b'POST /v1/task/heartbeat HTTP/1.1\r\nhost: t\r\ncontent-length: 14\r\n\r\n{"task_id": 1}',
    b"POST /v1/dags HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\nx: y\r\n\r\n",
    b"GET /metrics HTTP/1.0\r\nconnection: keep-alive\r\nauthorization: Bearer x\r\n\r\n",
    b'POST /v1/query HTTP/1.1\r\nhost: t\r\ncontent-length: 19\r\n\r\n{"sql": "SELECT 1"}\n',
    b'POST /session HTTP/1.1\r\nhost: t\r\norigin: https://t\r\ncontent-length: 16\r\n\r\n{"token": "abc"}',
    b"POST /v1/webhooks/d/j HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
]
TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b":",
    b" ",
    b"\0",
    b"\xff",
    b"chunked",
    b"content-length: 99999999999999999999\r\n",
    b"content-length: -1\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"ffffffffffffffffff\r\n",
    b"CONNECT t:1 HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET http://%zz/?\xc3\x28#f HTTP/9.9\r\n",
    b"x" * 5000,
    b"a: b\r\n" * 500,
]


def damaged(rng: random.Random) -> bytes:
    """Return one or more valid requests with random edits."""
    data = bytearray(b"".join(rng.choices(GOOD, k=rng.choice((1, 1, 1, 2, 40)))))
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(data) + 1)
        new = [
            rng.choice(TOKENS),
            rng.randbytes(rng.randrange(1, 40)),
            bytes(data[at : at + rng.randrange(1, 60)]),
        ]
        data[at : at + rng.choice((0, 0, 1, 8))] = rng.choice(new)
    return bytes(data)


@contextlib.contextmanager
def sending(port: int, context: ssl.SSLContext, data: bytes) -> Generator[ssl.SSLSocket]:
    """Send bytes over TLS; the server may refuse them at any time."""
    plain = socket.create_connection(("127.0.0.1", port), 60)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        yield connection


def read_statuses(connection: ssl.SSLSocket) -> list[int]:
    """Read what arrives until a short silence, and return the statuses of the answers."""
    received = b""
    connection.settimeout(0.05)
    with contextlib.suppress(OSError):
        while piece := connection.recv(65536):
            received += piece
    return [int(part[:3]) for part in received.split(STATUS)[1:]]
