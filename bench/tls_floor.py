"""Send bytes over TLS and nothing else: the floor of a result that passes through one connection.

`python -m bench.tls_floor CERT KEY SIZE` prints its port, then sends so many bytes to every client.
"""

import socket
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PIECE = 512 * 1024


@contextmanager
def open_floor(tls: Path, size: int) -> Generator[int]:
    """Run the sender in a process of its own. Yields its port."""
    words = (str(tls / "server.pem"), str(tls / "server.key"), str(size))
    command = [sys.executable, "-m", "bench.tls_floor", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


def receive(port: int, context: ssl.SSLContext, size: int) -> None:
    """Read all bytes into one buffer."""
    buffer = memoryview(bytearray(size))
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as channel,
    ):
        filled = 0
        while filled < size:
            received = channel.recv_into(buffer[filled:])
            assert received, "the sender closed the connection too early"
            filled += received


def _send(cert: str, key: str, size: int) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    piece = bytes(_PIECE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as channel:
                for start in range(0, size, _PIECE):
                    channel.sendall(piece[: size - start])


if __name__ == "__main__":
    _send(sys.argv[1], sys.argv[2], int(sys.argv[3]))
