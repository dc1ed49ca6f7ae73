"""The processes of a sandbox, seen from outside: stop, continue, end and measure all of them."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_PASSES = 50
_ENDED = ("Z", "X", "")
_AT_REST = ("T", "D", *_ENDED)
"""States in which a process runs no code until it is continued. In D, the signal waits for it."""
_KERNEL_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def stop(root: int) -> None:
    """Stop every process below bwrap. New ones may appear until all are stopped."""
    for _ in range(_MAX_PASSES):
        running = [pid for pid in _list_below(root) if _read_state(pid) not in _AT_REST]
        if not running:
            return
        for pid in running:
            _send(pid, signal.SIGSTOP)


def continue_(root: int) -> None:
    """Continue every stopped process."""
    for pid in _list_below(root):
        _send(pid, signal.SIGCONT)


def kill(root: int) -> None:
    """End bwrap and the first process of its namespace, with which the kernel ends all others.

    That process ends with bwrap only after it has asked for this, shortly after its start. So bwrap
    is stopped first, and can start nothing more while its children are found.
    """
    _send(root, signal.SIGSTOP)
    for pid in [*_list_below(root), root]:
        _send(pid, signal.SIGKILL)


def used_memory(root: int) -> int:
    """Return the memory of all processes below bwrap, in bytes."""
    return sum(map(_measure_resident, _list_below(root)))


def socket_memory(root: int) -> int:
    """Return what sockets in the network of a sandbox may hold, in bytes. It belongs to no process.

    Unix sockets count as full: how full they are cannot be seen from outside. The call filter keeps their size.
    """
    network = Path("/proc/self/ns/net").readlink()
    for pid in _list_below(root):
        with suppress(OSError):  # the process has ended
            if Path(f"/proc/{pid}/ns/net").readlink() != network:
                return _measure_sockets(Path(f"/proc/{pid}/net"))
    return 0


def _measure_sockets(network: Path) -> int:
    unix = len((network / "unix").read_text().splitlines()) - 1
    queues = [line.split()[4].split(":") for line in (network / "tcp").read_text().splitlines()[1:]]
    size = int(Path("/proc/sys/net/core/wmem_default").read_text())
    return unix * size + sum(int(sent, 16) + int(received, 16) for sent, received in queues)


def is_running(pid: int) -> bool:
    """Return whether a process has not ended."""
    return _read_state(pid) not in _ENDED


def _list_below(pid: int) -> Iterator[int]:
    for child in _list_children(pid):
        yield child
        yield from _list_below(child)


def _list_children(pid: int) -> list[int]:
    if not _KERNEL_LISTS_CHILDREN:
        with suppress(psutil.Error):  # reads all processes of the machine: slower
            return [child.pid for child in psutil.Process(pid).children()]
        return []
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                words = (thread / "children").read_text().split()
                found += map(int, words)
    return found


def _read_state(pid: int) -> str:
    """Return the letter of the process state; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _measure_resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
