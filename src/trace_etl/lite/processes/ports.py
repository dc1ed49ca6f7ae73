"""Loopback ports: free ones, and who holds a taken one."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below Linux's ephemeral range: no outgoing connection takes a remembered port while we are down.
_CANDIDATES = range(20_000, 32_000)
_ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(taken: frozenset[int] = frozenset()) -> int:
    """A port nobody listens on, outside `taken`. Raises OSError when there is none."""
    for port in random.sample(_CANDIDATES, _ATTEMPTS):
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port on {LOOPBACK} between {_CANDIDATES.start} and {_CANDIDATES.stop}")


def holder(port: int) -> str:
    """Who listens on the port, in words; another user's program stays unnamed."""
    import psutil  # here, because every command imports this module and few ask

    try:
        listening = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return "another program"
    for connection in listening:
        if connection.laddr and connection.laddr[1] == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return "another program"
