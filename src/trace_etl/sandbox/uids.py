"""One user id per sandbox, where this process may change its user."""

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trace_etl.sandbox import process_tree
from trace_etl.sandbox.errors import SandboxUnavailable

REDUCE = Path(__file__).parent / "launchers" / "reduce.py"
# Below 65536, so that containers can use them. No distribution assigns these ids.
_UIDS = range(64700, 65200)
_SET_SUBREAPER = 36


@contextmanager
def reserve_uid() -> Generator[int | None]:
    """Reserve a user id that no other sandbox on this machine uses. None if this is not root.

    Raises SandboxUnavailable.
    """
    if os.geteuid() != 0:
        yield None
        return
    left = _find_processes()
    for uid in _UIDS:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reservation:
            if not _bind(reservation, uid):
                continue
            if _reap(left.get(uid, [])):
                yield uid
                return
            # A worker that was killed left them. Ended processes that are not reaped count towards the limit
            # of processes of their user.
            if any(process_tree.is_running(pid) for pid in left[uid]):
                end_all_of(uid)
    raise SandboxUnavailable(
        f"all {len(_UIDS)} user ids for sandboxes are in use",
        "run fewer tasks at once; in a container, start an init process, which reaps ended processes",
    )


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends, so that this process can reap them."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")


def _reap(pids: Sequence[int]) -> bool:
    """Reap adopted processes that have ended. Returns whether none is left."""
    for pid in pids:
        with suppress(
            ChildProcessError
        ):  # it belongs to another process, or another thread reaped it
            os.waitpid(pid, os.WNOHANG)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def end_all_of(uid: int) -> None:
    """End every process with the user id of a sandbox."""
    python = [sys.executable, "-I", "-S", str(REDUCE), "--end", str(uid)]
    subprocess.run(python, env={}, cwd="/", check=True)


def _bind(reservation: socket.socket, uid: int) -> bool:
    """Bind the socket to a name that stands for the id. The kernel frees it with the process."""
    try:
        reservation.bind(f"\0trace-sandbox-uid-{uid}")
    except OSError:
        return False
    return True


def _find_processes() -> dict[int, list[int]]:
    """Return the processes of each user id for sandboxes, also those that ended and are not reaped."""
    found: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        with suppress(FileNotFoundError):  # the process was reaped
            if entry.name.isdigit() and (uid := entry.stat().st_uid) in _UIDS:
                found.setdefault(uid, []).append(int(entry.name))
    return found
