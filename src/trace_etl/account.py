"""Run a program as another account that sees only the given files. Standard library only: runs with -I -S.

It separates the operator host of a worker of root from that worker. The files of a stack belong to root, so this
program makes a private view of the file system (a mount namespace): directories that other users cannot enter
are replaced by empty ones, and the given paths are mounted there again, with an id mapping that shows root's
files as those of the account. Files that it makes belong to root outside. Landlock may restrict it, too.
Arguments: the parent's pid, and the settings as JSON, or the descriptor of a file with them.
"""

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
from trace_etl import landlock

# Below 65536, so that containers can use them. No distribution assigns these ids.
UIDS = range(65200, 65300)
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_PRIVATE_AND_ALL, _BIND = 1 << 18 | 1 << 14, 4096
_NO_SUID_NO_DEVICES = 2 | 4
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE, _CLOSE_ON_EXEC, _EMPTY_PATH = 1, 0o2000000, 0x1000
_FROM_EMPTY_PATH = 4
_READ_ONLY, _ID_MAPPED = 0x1, 0x00100000
_SET_PARENT_DEATH_SIGNAL = 1
_HERE = -100
_SKIPPED = ("/proc", "/sys", "/dev")


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users")]


def make_command(settings: Mapping[str, object] | int) -> list[str]:
    """Return the command line that runs `command` in `directory` and shows it `read` and `write`.

    Everyone can read it: settings with an `environment` belong into a file, given by its descriptor.
    With `landlock`, the program is also restricted to these paths, and ends with its parent.
    """
    python = [sys.executable, "-I", "-S", __file__]
    shown = settings if isinstance(settings, int) else dict(settings)
    return [*python, str(os.getpid()), json.dumps(shown)]


def explain_missing(settings: Mapping[str, object]) -> str | None:
    """Return why this machine cannot run a program as another account; None if it can."""
    if os.geteuid() != 0:
        return "only root can change the user"
    command = make_command({**settings, "command": [sys.executable, "-I", "-S", "-c", ""]})
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = tried.stderr.strip().splitlines()
    return None if tried.returncode == 0 else (lines or [f"exit code {tried.returncode}"])[-1]


def main(arguments: list[str]) -> None:
    """Make the view, change the user and start the program. Raises OSError."""
    parent, settings = int(arguments[0]), _read_settings(arguments[1])
    uid = _reserve_uid()
    paths = dict.fromkeys(_list_existing(settings["read"]), False)
    paths |= dict.fromkeys(_list_existing(settings["write"]), True)
    libc = ctypes.CDLL(None, use_errno=True)
    mask = os.umask(0o022)  # the account must pass the directories made below
    _check(libc.unshare(_NEW_MOUNTS), "unshare")
    _mount(libc, "none", "/", None, _PRIVATE_AND_ALL, "")
    _show(libc, {path: paths[path] for path in _find_hidden(paths)}, uid)
    _name_user(libc, uid, settings["directory"])
    os.umask(mask)
    rules = _prepare_rules(settings) if settings.get("landlock") else None
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.chdir(settings["directory"])
    if rules is not None:
        # After setuid: a change of credentials clears the parent-death signal.
        _check(libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
        landlock.apply(rules)
    if os.getppid() != parent:
        sys.exit("the parent died first")
    command, environment = settings["command"], settings.get("environment", {**os.environ})
    os.execve(command[0], command, {**environment, "HOME": settings["directory"]})  # noqa: S606


def _read_settings(argument: str) -> dict[str, Any]:
    settings = json.loads(argument)
    if isinstance(settings, int):
        with os.fdopen(settings) as file:
            settings = json.load(file)
    return settings


def _prepare_rules(settings: Mapping[str, Any]) -> int:
    """Make Landlock rules for the paths of the view, as root, who can reach all of them."""
    write = settings["write"]
    return landlock.prepare(read=[*settings["read"], *write], write=write, scoped=True)


def _reserve_uid() -> int:
    """Return a user id that no other host on this machine uses. The program keeps it until it ends."""
    for uid in UIDS:
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            reservation.bind(f"\0trace-host-uid-{uid}")
        except OSError:
            reservation.close()
            continue
        os.set_inheritable(reservation.detach(), True)
        return uid
    raise OSError(
        f"all {len(UIDS)} user ids for operator hosts are in use; run fewer workers at once"
    )


def _list_existing(paths: list[str]) -> list[str]:
    found = {os.path.realpath(path) for path in paths if Path(path).exists()}
    return sorted(path for path in found if not path.startswith(_SKIPPED))


def _find_hidden(paths: dict[str, bool]) -> list[str]:
    """Return the paths that another user cannot use as they are, the outer ones first."""
    hidden: list[str] = []
    for path in sorted(paths):
        is_inside = any(
            _is_below(path, outer) and (paths[outer] or not paths[path]) for outer in hidden
        )
        if not is_inside and (_find_barrier(path) or not _is_open(path, paths[path])):
            hidden.append(path)
    return hidden


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def _is_open(path: str, is_writable: bool) -> bool:
    mode = Path(path).stat().st_mode
    wanted = 0o004 | (0o001 if stat.S_ISDIR(mode) else 0) | (0o002 if is_writable else 0)
    return mode & wanted == wanted


def _find_barrier(path: str) -> str | None:
    """Return the outermost directory above a path that other users cannot enter."""
    closed = [parent for parent in Path(path).parents if not parent.stat().st_mode & 0o001]
    return str(closed[-1]) if closed else None


def _show(libc: ctypes.CDLL, paths: dict[str, bool], uid: int) -> None:
    """Mount paths again, as files of the account. Directories that the account cannot enter become empty ones."""
    users = _map_root_to(libc, uid)
    trees = [(path, _clone(libc, path, users, is_writable)) for path, is_writable in paths.items()]
    kinds = {path: Path(path).is_dir() for path in paths}
    for barrier in sorted({found for path in paths if (found := _find_barrier(path))}):
        _mount(libc, "tmpfs", barrier, "tmpfs", _NO_SUID_NO_DEVICES, "mode=755,size=1m")
    for path, tree in trees:
        _make_place(Path(path), is_directory=kinds[path])
        moved = libc.syscall(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(path), _FROM_EMPTY_PATH)
        _check(moved, f"mount {path}")
        os.close(tree)
    os.close(users)


def _make_place(path: Path, *, is_directory: bool) -> None:
    if path.exists():
        return
    directory = path if is_directory else path.parent
    directory.mkdir(parents=True, exist_ok=True)
    if not is_directory:
        path.touch()


def _clone(libc: ctypes.CDLL, path: str, users: int, is_writable: bool) -> int:
    opened = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    if str(Path(f"/proc/self/fd/{opened}").readlink()) != path:
        # A worker could link to a target that it may not see itself.
        raise OSError(f"{path} was exchanged for a link")
    flags = _CLONE | _CLOSE_ON_EXEC | _EMPTY_PATH
    tree = _check(libc.syscall(_OPEN_TREE, opened, b"", flags), f"clone {path}")
    os.close(opened)
    attributes = _Attributes(_ID_MAPPED | (0 if is_writable else _READ_ONLY), 0, 0, users)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    changed = libc.syscall(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH, ctypes.byref(attributes), size)
    _check(changed, f"map the owner of {path}")
    return tree


def _map_root_to(libc: ctypes.CDLL, uid: int) -> int:
    """Return a user namespace whose root is the account, for the mappings of mounts."""
    is_ready, ready = os.pipe()
    child = os.fork()
    if child == 0:
        if libc.unshare(_NEW_USERS) == 0:
            os.write(ready, b".")
            signal.pause()
        os._exit(1)
    os.close(ready)
    try:
        if not os.read(is_ready, 1):
            raise OSError("user namespaces are disabled")
        for name in ("uid_map", "gid_map"):
            Path("/proc", str(child), name).write_text(f"0 {uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    finally:
        os.close(is_ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _name_user(libc: ctypes.CDLL, uid: int, home: str) -> None:
    """Give the account a name, which Hadoop asks for."""
    known = Path("/etc/passwd").read_text()
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", prefix="trace-host-") as made:
        made.write(f"{known.rstrip()}\ntrace-host:x:{uid}:{uid}::{home}:/bin/false\n")
        made.flush()
        os.fchmod(made.fileno(), 0o644)
        _mount(libc, made.name, "/etc/passwd", None, _BIND, "")


def _mount(
    libc: ctypes.CDLL, source: str, target: str, kind: str | None, flags: int, options: str
) -> None:
    words = [os.fsencode(source), os.fsencode(target), kind and kind.encode()]
    mounted = libc.mount(*words, ctypes.c_ulong(flags), options.encode())
    _check(mounted, f"mount {target}")


def _check(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
