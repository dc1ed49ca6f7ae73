"""Run a program at the isolation `reduced`: Landlock, a call filter and a user id, without namespaces.

Runs as root with -I -S. This process stays, becomes the parent of all processes that the program leaves
behind, and ends them after the program. Standard library only. Argument: the descriptor of a file with the settings as
JSON, because everyone can read arguments.
"""

import base64
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

_SET_PARENT_DEATH_SIGNAL, _SET_SECCOMP, _SET_SUBREAPER = 1, 22, 36
_SECCOMP_FILTER, _SET_NO_NEW_PRIVILEGES = 2, 38

_KILLERS = 1000
"""How far below the user id of a function is the id of the process that ends it. Nothing else has that id."""


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def main(arguments: list[str]) -> None:
    """Start the program, wait for its end, and end the processes that it left. Raises OSError."""
    with os.fdopen(int(arguments[0])) as file:
        settings = json.load(file)
    sys.path.append(settings["modules"])
    import landlock  # pyright: ignore[reportMissingImports] - a part of the package that needs no other

    for path in settings["join"]:
        with open(path, "w") as members:
            members.write(str(os.getpid()))
    _set(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != settings["parent"]:
        raise SystemExit("the parent has ended")
    _set(_SET_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _become_the_program(settings, landlock)
    os.close(settings["started"])
    code = os.waitstatus_to_exitcode(_wait_for(child))
    _end_all_of(settings["uid"])
    raise SystemExit(code if code >= 0 else 128 - code)


def _become_the_program(settings: dict[str, Any], landlock: Any) -> None:
    os.setsid()
    write = settings["write"]
    # As root, while all paths can be reached.
    rules = landlock.prepare(
        read=[*settings["read"], *write], write=write, execute=settings["read"], scoped=True
    )
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.umask(0o022)
    _change_user(settings["uid"])
    _set(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.chdir(settings["directory"])
    if settings["landlock"]:
        landlock.apply(rules)
    _set(_SET_NO_NEW_PRIVILEGES, 1)
    if settings["filter"]:
        steps = base64.b64decode(settings["filter"])
        rules = _Filter(len(steps) // 8, steps)
        _set(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(rules))
    os.write(settings["started"], b"1")
    os.close(settings["started"])
    command = settings["command"]
    os.execve(command[0], command, settings["environment"])  # noqa: S606


def _wait_for(child: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == child:
            return status


def _end_all_of(uid: int) -> None:
    """End every process with this user id. The kernel reaches them all at once, also those that fork."""
    killer = os.fork()
    if killer == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            # It may signal processes with either id. They may signal it by neither: only its effective id is
            # theirs. So they cannot end it first.
            os.setresuid(uid - _KILLERS, uid, uid - _KILLERS)
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os._exit(0)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def _change_user(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _set(option: int, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, *arguments, *[0] * (4 - len(arguments))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


if __name__ == "__main__":
    if sys.argv[1] == "--end":
        _end_all_of(int(sys.argv[2]))
    else:
        main(sys.argv[1:])
