"""A hostile program that uses up what it gets, in the way that its argument names. It does not end by itself."""

import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable

BLOCK = 100 << 20


def fork_without_end() -> None:
    while True:
        try:
            os.fork()
        except OSError:
            continue


def fill_memory_in_children() -> None:
    for _ in range(4):
        if os.fork() == 0:
            kept = b"x" * BLOCK
            signal.sigwait(())
            print(len(kept))
    signal.sigwait(())


def fill_shared_mappings() -> None:
    for _ in range(4):
        if os.fork() == 0:
            shared = mmap.mmap(-1, BLOCK)
            for offset in range(0, BLOCK, 4096):
                shared[offset] = 1
            signal.sigwait(())
    signal.sigwait(())


def fill_sockets() -> None:
    """The memory of their buffers belongs to no process."""
    for _ in range(15):
        if os.fork() == 0:
            kept = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(120)]
            for end in (end for pair in kept for end in pair):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                end.setblocking(False)
                try:
                    while True:
                        end.send(b"x" * (1 << 16))
                except BlockingIOError:
                    continue
            signal.sigwait(())
    signal.sigwait(())


def print_without_end() -> None:
    while True:
        os.write(1, b"x" * (1 << 20))


def survive_its_end() -> None:
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(1)
            os.close(2)
    while True:
        try:
            os.write(1, b".")
        except OSError:
            signal.sigwait(())


_BOMBS: list[Callable[[], None]] = [
    fork_without_end,
    fill_memory_in_children,
    fill_shared_mappings,
    fill_sockets,
    print_without_end,
    survive_its_end,
]
{bomb.__name__: bomb for bomb in _BOMBS}[sys.argv[1]]()
