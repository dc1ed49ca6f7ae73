"""Restrict the files that this process and its children can use, with Landlock (Linux 5.19).

Standard library only: the launchers of child processes import it without site-packages. Landlock
needs no privileges, also binds root, and cannot be undone.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Sequence

MINIMUM_VERSION = 2  # version 1 forbids every rename between two directories

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CHANGE_ENTRIES = sum(1 << bit for bit in range(4, 13))  # create and remove entries of each kind
_CREATE_DEVICES = 1 << 6 | 1 << 11
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _CHANGE_ENTRIES | _REFER | _TRUNCATE

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_SCOPES = 0b11  # abstract Unix sockets, signals
_SCOPES_SINCE = 6
_TRUNCATE_SINCE = 3
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_KEPT_CAPABILITIES = 1 << 1 | 1 << 10  # ignore file modes, bind low ports


def version() -> int:
    """Return the Landlock version of the kernel; 0 if Landlock is missing, disabled or too old."""
    if sys.platform != "linux":
        return 0
    found = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return found if found >= MINIMUM_VERSION else 0


def restrict(
    *,
    read: Sequence[str] | None = None,
    write: Sequence[str] | None = None,
    execute: Sequence[str] | None = None,
    scoped: bool = False,
) -> None:
    """Allow each kind of access only at and below the given paths. None leaves a kind unrestricted.

    A rule holds for the file or directory that exists now: name the directory of files that are
    replaced. Paths that do not exist are skipped. A writable path is not readable unless `read`
    names it, too, and does not take device files. `scoped` also forbids signals and abstract Unix
    sockets to processes outside, where the kernel can. Any restriction forbids mounting, and
    tracing processes outside, which includes reading their environment in `/proc`. As root, the
    process loses the capabilities that would get around this.

    Call it before the process starts threads. Raises OSError.
    """
    apply(prepare(read=read, write=write, execute=execute, scoped=scoped))


def prepare(
    *,
    read: Sequence[str] | None = None,
    write: Sequence[str] | None = None,
    execute: Sequence[str] | None = None,
    scoped: bool = False,
) -> int:
    """Make the rules of `restrict` and return their descriptor for `apply`. Raises OSError.

    A process that changes its user id calls this before, while it can still reach all the paths.
    """
    known = version()
    if not known:
        raise OSError("Landlock is not available: the kernel is older than 5.19 or has it disabled")
    rights = _READ | _WRITE | _EXECUTE
    if known < _TRUNCATE_SINCE:
        rights &= ~_TRUNCATE
    # Landlock always restricts renames between directories, so these need a rule in each case.
    wanted = [(_READ, read), (_WRITE, write), (_EXECUTE, execute)]
    handled = sum(kind for kind, paths in wanted if paths is not None) | _REFER
    scopes = _SCOPES if scoped and known >= _SCOPES_SINCE else 0
    ruleset = _create_ruleset(handled & rights, scopes)
    for kind, paths in wanted:
        for path in paths or ():
            _allow(ruleset, path, kind & rights & ~_CREATE_DEVICES)
    if write is None:
        _allow(ruleset, "/", _REFER)
    return ruleset


def apply(ruleset: int) -> None:
    """Restrict this process by the rules of `prepare`, and close their descriptor. Raises OSError."""
    try:
        _apply(ruleset)
    finally:
        os.close(ruleset)


def _create_ruleset(handled: int, scopes: int) -> int:
    # Older kernels know only the first fields, and accept the others if they are zero.
    attributes = struct.pack("=QQQ", handled, 0, scopes)
    return _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        entry = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(entry).st_mode):
            rights &= _FILE_RIGHTS
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, entry), 0)
    finally:
        os.close(entry)


def _apply(ruleset: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _make_last_error()
    _call(_RESTRICT_SELF, ruleset, 0)
    _drop_capabilities(libc)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Keep few capabilities. With `no_new_privs`, no program that root executes gets them back."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if libc.capget(header, held) != 0:
        raise _make_last_error()
    _effective, permitted, *_ = struct.unpack("=6I", held.raw)
    kept = permitted & _KEPT_CAPABILITIES
    if libc.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)) != 0:
        raise _make_last_error()


def _call(number: int, *arguments: object) -> int:
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise _make_last_error()
    return result


def _make_last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"Landlock: {os.strerror(code)}")
