"""A program in a real pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][0-9A-B]?)")


class Terminal:
    """Runs a program, types into it and reads what it shows."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int = 100, lines: int = 40
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        # prompt_toolkit would ask the terminal for the cursor's position and wait for the answer.
        environment = {**env, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._raw = b""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, seconds: float = 60) -> str:
        """Wait until a text is shown after what was expected before. Returns what came before it."""
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown[self._seen :]!r}"
            self._read(0.2)
        before, self._seen = self.shown[self._seen : at], at + len(text)
        return before

    @property
    def shown(self) -> str:
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            try:
                self._raw += os.read(self._master, 65536)
            except OSError:  # the program has ended
                time.sleep(seconds)

    def wait(self, seconds: float = 30) -> int:
        """Wait until the program ends. Returns its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown[self._seen :]
            self._read(0.2)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
