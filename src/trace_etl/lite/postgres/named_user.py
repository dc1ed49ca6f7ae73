"""Run a program as a user id without an entry in the user database. Standard library only: runs with -I -S.

Arguments: uid, gid, a uid with an entry, program, its arguments. initdb refuses a user without a
name. In a user namespace, its uid appears as the one with an entry, and its files belong to the real uid.
"""

import ctypes
import os
import sys
from pathlib import Path

_PR_SET_DUMPABLE = 4
_CLONE_NEWUSER = 0x10000000


def run(arguments: list[str]) -> None:
    """Replace this process by the program. Raises OSError."""
    uid, gid, shown = (int(value) for value in arguments[:3])
    command = arguments[3:]
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    libc = ctypes.CDLL(None, use_errno=True)
    # setuid makes the files of this process in /proc belong to root.
    if libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) != 0 or libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "cannot create a user namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{shown} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{shown} {gid} 1")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    run(sys.argv[1:])
