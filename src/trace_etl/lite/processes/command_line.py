"""Change the command line and the environment that Linux shows for this process."""

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_NO_FILE = 0xFFFFFFFF
# The numbers of these fields in /proc/self/stat, whose fields have no names.
_FIELDS = {
    "start_code": 26,
    "end_code": 27,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
    "start_stack": 28,
}
_FIRST_AFTER_NAME = 3

_shown: list[ctypes.Array[ctypes.c_char]] = []
"""The memory that the kernel reads."""


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end")),
        *(("auxv", ctypes.c_uint64), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)),
    ]


def show(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Show this command line in `ps`, and this environment in `/proc`. Returns whether the kernel can.

    Linux can since 3.18, if it is configured for checkpoints, as distributions do.
    """
    words = _join(argv)
    text = words + _join(f"{name}={value}" for name, value in environment.items())
    memory = ctypes.create_string_buffer(text, len(text))
    start = ctypes.addressof(memory)
    end_of_words = start + len(words)
    values = _read_current()
    values |= {"arg_start": start, "arg_end": end_of_words}
    values |= {"env_start": end_of_words, "env_end": start + len(text)}
    wanted = _MemoryMap(**values, exe_fd=_NO_FILE)
    size = ctypes.c_ulong(ctypes.sizeof(wanted))
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(wanted), size, 0) != 0:
        return False
    _shown[:] = [memory]
    return True


def _join(words: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _read_current() -> dict[str, int]:
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    current = {name: int(fields[number - _FIRST_AFTER_NAME]) for name, number in _FIELDS.items()}
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.restype = ctypes.c_void_p
    return {**current, "brk": sbrk(ctypes.c_long(0))}
