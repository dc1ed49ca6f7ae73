"""Find free loopback ports, and the program that uses a taken one."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below Linux's ephemeral range: outgoing connections cannot take a saved port of a stopped stack.
_CANDIDATES = range(20_000, 32_000)
_ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Return whether a server can listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(taken: frozenset[int] = frozenset()) -> int:
    """Return a free port that is not in `taken`. Raises OSError if there is none."""
    for port in random.sample(_CANDIDATES, _ATTEMPTS):
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port on {LOOPBACK} between {_CANDIDATES.start} and {_CANDIDATES.stop}")


def holder(port: int) -> str:
    """Describe the program that listens on a port. Programs of other users have no name."""
    import psutil  # imported here to keep the import of this module fast

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
