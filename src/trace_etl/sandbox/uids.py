"""One user id per sandbox, where this process may change its user."""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

from trace_etl.sandbox.errors import SandboxUnavailable

# Below 65536, so that containers can use them. No distribution assigns these ids.
_UIDS = range(64700, 65200)


@contextmanager
def reserve_uid() -> Generator[int | None]:
    """Reserve a user id that no other sandbox on this machine uses. None if this is not root.

    Raises SandboxUnavailable.
    """
    if os.geteuid() != 0:
        yield None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reservation:
        yield _bind_first_free(reservation)


def _bind_first_free(reservation: socket.socket) -> int:
    """Bind the socket to a name that stands for the id. The kernel frees it with the process."""
    for uid in _UIDS:
        try:
            reservation.bind(f"\0trace-sandbox-uid-{uid}")
        except OSError:
            continue
        return uid
    raise SandboxUnavailable(
        f"all {len(_UIDS)} user ids for sandboxes are in use", "run fewer tasks at once"
    )
