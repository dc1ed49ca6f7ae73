"""Start bubblewrap as another user, with the files that it needs in reach. Runs as root with -I -S.

The user of a sandbox cannot enter root's directories. So this program makes a private view of the
file system (a mount namespace), puts the given files below one directory there, gives up root and
starts bubblewrap. Standard library only. Argument: the settings as JSON.
"""

import ctypes
import json
import os
import signal
import sys

_NEW_MOUNTS = 0x00020000
_PRIVATE_AND_ALL = 1 << 18 | 1 << 14
_BIND = 4096
_SET_PARENT_DEATH_SIGNAL = 1
_NO_SUID_NO_DEVICES = 2 | 4


def main(arguments: list[str]) -> None:
    """Make the view, change the user, and start bubblewrap. Raises OSError."""
    settings = json.loads(arguments[0])
    for path in settings["join"]:
        with open(path, "w") as members:
            members.write(str(os.getpid()))
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS) != 0:
        raise _last_error("unshare")
    _mount("none", "/", None, _PRIVATE_AND_ALL, "")
    # Before the view hides a part of the file system.
    sources = [(os.open(path, os.O_PATH), target) for path, target in settings["sources"]]
    os.umask(0o022)  # the user of the sandbox must pass the directories made below
    uid, view = settings["uid"], settings["view"]
    _mount("tmpfs", view, "tmpfs", _NO_SUID_NO_DEVICES, "mode=755,size=1m")
    for descriptor, target in sources:
        _show(descriptor, target)
    for target, options in settings["temporary"].items():
        os.mkdir(target)
        _mount("tmpfs", target, "tmpfs", _NO_SUID_NO_DEVICES, f"{options},uid={uid},gid={uid}")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.chdir("/")
    _end_with_parent(settings["parent"])
    command = settings["command"]
    os.execve(command[0], command, settings["environment"])  # noqa: S606


def _end_with_parent(parent: int) -> None:
    """End when the parent ends. bwrap does this too late for a parent that ends before it runs."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL) != 0:
        raise _last_error("prctl")
    if os.getppid() != parent:
        raise SystemExit("the parent has ended")


def _show(descriptor: int, target: str) -> None:
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(source, target, None, _BIND, "")
    os.close(descriptor)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [os.fsencode(source), os.fsencode(target), kind and kind.encode()]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        raise _last_error(f"mount {target}")


def _last_error(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


if __name__ == "__main__":
    main(sys.argv[1:])
