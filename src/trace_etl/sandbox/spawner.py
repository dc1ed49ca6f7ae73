"""Start sandboxes for a worker that Landlock restricts, which therefore cannot mount anything.

The worker starts this program first and restricts itself afterwards. They talk over one socket, in
lines of JSON. A worker can ask only for programs whose files lie in one directory, which it names at
the start. When the worker ends, this program and all its sandboxes end.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trace_etl.sandbox.bubblewrap import Shown
from trace_etl.sandbox.errors import SandboxUnavailable
from trace_etl.sandbox.limits import Limits
from trace_etl.sandbox.process import Ended, Program, SandboxedProcess
from trace_etl.sandbox.uids import adopt_orphans

_FLUSH_SECONDS = 10.0


class RemoteProcess:
    """A program that the spawner runs. The same interface as SandboxedProcess."""

    def __init__(self, spawner: "Spawner", number: int, on_output: Callable[[bytes], None]) -> None:
        self._spawner, self._number, self.on_output = spawner, number, on_output
        self._answered, self._decided = threading.Event(), threading.Event()
        self._has_started = False
        self._flushed = threading.Event()
        self._answer: Mapping[str, Any] = {}

    def wait(self) -> Ended:
        """Wait until the program has ended, and return how. Raises SandboxUnavailable and OSError."""
        self._answered.wait()
        if problem := self._answer.get("unavailable"):
            raise SandboxUnavailable(*problem)
        if problem := self._answer.get("error"):
            raise OSError(problem)
        ended: dict[str, Any] = dict(self._answer["ended"])
        ended["output"] = base64.b64decode(ended["output"])
        return Ended(**ended)

    def wait_for_start(self) -> bool:
        """Wait until the program begins. False: the sandbox could not be made."""
        self._decided.wait()
        return self._has_started

    def kill(self) -> None:
        """End the whole process tree at once."""
        self._spawner.send({"kill": self._number})

    def suspend(self) -> None:
        """Stop all processes until `resume`."""
        self._spawner.send({"suspend": self._number})

    def resume(self) -> None:
        """Let all processes continue, with a new allowance of output."""
        self._spawner.send({"resume": self._number})

    def flush_output(self) -> None:
        """Wait until everything that the program has printed was passed on."""
        self._flushed.clear()
        self._spawner.send({"flush": self._number})
        self._flushed.wait(_FLUSH_SECONDS)

    def receive(self, answer: Mapping[str, Any]) -> None:
        if "started" in answer:
            self._has_started = True
            self._decided.set()
            return
        if "flushed" not in answer:
            self._answer = answer
            self._decided.set()
            self._answered.set()
        self._flushed.set()


def launch_spawner(directory: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the spawner and return the connection to it. It ends with the connection.

    Programs may be shown files below `directory`, and nothing else of the host.
    """
    ours, theirs = socket.socketpair()
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = [sys.executable, "-P", "-m", "trace_etl.sandbox.spawner"]
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(directory)],
            pass_fds=[theirs.fileno()],
            env=kept,
            cwd="/",
        )
    return ours, process


class Spawner:
    """The worker's side: asks the spawner for sandboxes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()
        self._running: dict[int, RemoteProcess] = {}
        self._count = 0
        threading.Thread(target=self._read_answers, name="spawner", daemon=True).start()

    def start(self, program: Program, on_output: Callable[[bytes], None]) -> RemoteProcess:
        """Start a program in a sandbox. `on_output` gets its output at once."""
        with self._lock:
            self._count += 1
            number = self._count
            process = self._running[number] = RemoteProcess(self, number, on_output)
        files = [(str(entry.source), entry.target) for entry in program.files]
        fields = {**asdict(program), "files": files}
        self.send({"start": number, "program": fields})
        return process

    def send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End the spawner and all its sandboxes."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read_answers(self) -> None:
        with self._socket.makefile("rb") as answers:
            for line in answers:
                answer = json.loads(line)
                with self._lock:
                    process = self._running.get(answer["number"])
                if process is None:
                    continue  # the program ended before it was flushed
                with self._lock:
                    if not answer.keys() & {"part", "flushed", "started"}:
                        del self._running[answer["number"]]
                if "part" in answer:
                    process.on_output(base64.b64decode(answer["part"]))
                else:
                    process.receive(answer)
        with self._lock:
            left, self._running = self._running, {}
        for process in left.values():
            process.receive({"error": "the process that starts sandboxes has ended"})


class SpawnerServer:
    """The spawner's side: runs the programs that the worker asks for."""

    def __init__(self, connection: socket.socket, directory: Path) -> None:
        self._connection, self._directory = connection, directory.resolve()
        self._lock = threading.Lock()
        self._running: dict[int, SandboxedProcess] = {}
        self._killed: set[int] = set()

    def serve(self) -> None:
        """Serve until the worker closes the connection, then end all programs."""
        with self._connection.makefile("rb") as requests:
            for line in requests:
                request = json.loads(line)
                if "start" in request:
                    arguments = (request["start"], request["program"])
                    threading.Thread(target=self._run, args=arguments, daemon=True).start()
                elif "kill" in request:
                    self._kill(request["kill"])
                else:
                    self._control(**request)
        for number in list(self._running):
            self._kill(number)

    def _run(self, number: int, fields: dict[str, Any]) -> None:
        def send(part: bytes) -> None:
            self._answer(number, part=base64.b64encode(part).decode())

        try:
            program = self._parse(fields)
            with self._lock:
                process = self._running[number] = SandboxedProcess(program, on_output=send)
                if number in self._killed:
                    process.kill()
            if process.wait_for_start():
                self._answer(number, started=True)
            ended = process.wait()
            output = base64.b64encode(ended.output).decode()
            self._answer(number, ended={**asdict(ended), "output": output})
        except SandboxUnavailable as error:
            self._answer(number, unavailable=[error.problem, error.fix])
        except (OSError, ValueError) as error:
            self._answer(number, error=str(error))
        except Exception as error:  # a defect: the worker still waits for an answer
            traceback.print_exc()
            self._answer(number, error=f"the sandbox failed: {error!r}")
        finally:
            self._running.pop(number, None)
            self._killed.discard(number)

    def _parse(self, fields: dict[str, Any]) -> Program:
        """Return the program. Raises ValueError if it would see a file of the host."""
        files = [Shown(Path(source).resolve(), target) for source, target in fields["files"]]
        for entry in files:
            if not entry.source.is_relative_to(self._directory):
                raise ValueError(f"{entry.source} is outside of {self._directory}")
        parsed: dict[str, Any] = {**fields, "files": files, "limits": Limits(**fields["limits"])}
        return Program(**parsed)

    def _kill(self, number: int) -> None:
        with self._lock:
            self._killed.add(number)  # the program may not have started yet
            process = self._running.get(number)
        if process is not None:
            process.kill()

    def _control(
        self, suspend: int | None = None, resume: int | None = None, flush: int | None = None
    ) -> None:
        if (process := self._running.get(suspend or 0)) is not None:
            process.suspend()
        if (process := self._running.get(resume or 0)) is not None:
            process.resume()
        if flush is not None:
            if (process := self._running.get(flush)) is not None:
                process.flush_output()
            self._answer(flush, flushed=True)

    def _answer(self, number: int, **fields: object) -> None:
        with self._lock:
            self._connection.sendall(json.dumps({"number": number, **fields}).encode() + b"\n")


def main(descriptor: str, directory: str) -> None:
    """Serve the worker at the other end of an inherited socket."""
    adopt_orphans()
    with socket.socket(fileno=int(descriptor)) as connection:
        SpawnerServer(connection, Path(directory)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
