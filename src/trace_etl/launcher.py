"""Run a program that gets a signal when its parent dies. Standard library only: runs with -I -S.

`bind` does the same for a process that was forked and executes no program.

Arguments: the parent's pid, a signal or 0, uid or -1, gid or -1, the paths that the program may use as
JSON, or null for all, directory, program, its arguments.
A separate program, because code between fork and exec in a process with threads may deadlock.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
from trace_etl import landlock

_PR_SET_PDEATHSIG = 1


def launch(arguments: list[str]) -> None:
    """Replace this process by the program. Raises OSError."""
    parent, sent, uid, gid = (int(value) for value in arguments[:4])
    access, directory, *command = arguments[4:]
    bind(parent, sent, directory, json.loads(access), uid, gid)
    os.execv(command[0], command)  # noqa: S606


def bind(
    parent: int,
    sent: int,
    directory: str,
    allowed: dict[str, list[str]] | None,
    uid: int = -1,
    gid: int = -1,
) -> None:
    """Let this process get a signal when its parent dies, and give up what it may not use. Raises OSError."""
    # Before the change of user: the new user may not be able to enter the parents of these paths.
    os.chdir(directory)
    rules = _prepare_rules(allowed["read"], allowed["write"]) if allowed else None
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        # After setuid: a change of credentials clears the parent-death signal.
        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent, 0, 0, 0) != 0:
            raise OSError("prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:
            sys.exit("the parent died first")
    if rules is not None:
        landlock.apply(rules)


def _prepare_rules(read: list[str], write: list[str]) -> int:
    return landlock.prepare(read=[*read, *write], write=write, scoped=True)


if __name__ == "__main__":
    launch(sys.argv[1:])
