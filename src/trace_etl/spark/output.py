"""What operators print and log belongs to their attempts, also if several run in one process.

A thread belongs to the attempt that it runs for, and so do the threads that it starts. What other threads
print goes where it went before.
"""

import io
import logging
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO
from weakref import WeakKeyDictionary

MAX_BYTES = 1024 * 1024
_PENDING_BYTES = 8192
_FORMAT = "%(levelname)s %(name)s: %(message)s"
_QUIET = ("py4j", "pyspark")
Write = Callable[[bytes], None]


class Lines:
    """Pass on whole lines. Threads that print at the same time do not break each other's lines."""

    def __init__(self, send: Write) -> None:
        self._send = send
        self._pending: dict[threading.Thread, bytearray] = {}
        self._lock = threading.Lock()

    def write(self, content: bytes) -> None:
        """Add output. An incomplete line waits for its end, or for `flush`."""
        with self._lock:
            pending = self._pending.setdefault(threading.current_thread(), bytearray())
            pending += content
            end = pending.rfind(b"\n") + 1
            self._pass_on(pending, end or len(pending) // _PENDING_BYTES * _PENDING_BYTES)

    def flush(self) -> None:
        """Pass on the incomplete line of this thread."""
        with self._lock:
            pending = self._pending.pop(threading.current_thread(), bytearray())
            self._pass_on(pending, len(pending))

    def close(self) -> None:
        """Pass on the incomplete lines of all threads."""
        with self._lock:
            for pending in self._pending.values():
                self._pass_on(pending, len(pending))
            self._pending.clear()

    def _pass_on(self, pending: bytearray, end: int) -> None:
        if end:
            self._send(bytes(pending[:end]))
            del pending[:end]


class AttemptOutput(Lines):
    """The output of one attempt, up to a limit."""

    def __init__(self, send: Write, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(self._send_within_limit)
        self._send_on = send
        self._left = max_bytes + 1  # one more byte shows the receiver that output is missing
        self.is_over = False
        """Whether the attempt has ended. What its threads print later is not its output."""

    def _send_within_limit(self, content: bytes) -> None:
        taken = content[: self._left]
        self._left -= len(taken)
        if taken:
            self._send_on(taken)


_outputs: "WeakKeyDictionary[threading.Thread, AttemptOutput]" = WeakKeyDictionary()


def find_output() -> AttemptOutput | None:
    """Return the output of the attempt that this thread runs for."""
    found = _outputs.get(threading.current_thread())
    return None if found is None or found.is_over else found


@contextmanager
def attribute(output: AttemptOutput | None) -> Generator[None]:
    """Attribute what this thread prints, and the threads that it starts, to an attempt, or to none."""
    thread = threading.current_thread()
    before = _outputs.get(thread)
    _set(thread, output)
    try:
        yield
    finally:
        _set(thread, before)


@contextmanager
def capture(send: Write) -> Generator[None]:
    """Pass on what this thread, and the threads that it starts, print until the end."""
    output = AttemptOutput(send)
    try:
        with attribute(output):
            yield
    finally:
        output.is_over = True
        output.close()


def _set(thread: threading.Thread, output: AttemptOutput | None) -> None:
    if output is None:
        _outputs.pop(thread, None)
    else:
        _outputs[thread] = output


# --- the streams and logs of this process ---------------------------------------------------------


class _Stream(io.TextIOBase):
    """A standard stream that gives each attempt what its threads print."""

    def __init__(self, original: TextIO, find: Callable[[], Lines | None]) -> None:
        self._original, self._find = original, find
        self.buffer = _Bytes(original, find)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._original.errors

    def write(self, text: str, /) -> int:
        output = self._find()
        if output is None:
            return self._original.write(text)
        output.write(text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        output = self._find()
        if output is not None:
            output.flush()
        self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    def writable(self) -> bool:
        return True


class _Bytes(io.RawIOBase):
    """The binary side of a stream."""

    def __init__(self, original: TextIO, find: Callable[[], Lines | None]) -> None:
        self._original, self._find = original, find

    def write(self, content: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        (self._find() or self._original.buffer).write(bytes(content))
        return len(content)

    def fileno(self) -> int:
        return self._original.fileno()

    def writable(self) -> bool:
        return True


class _Handler(logging.Handler):
    """Adds the log records of operators to their output."""

    def emit(self, record: logging.LogRecord) -> None:
        add_line(self.format(record))


def add_line(line: str) -> None:
    """Add a line to the output of the attempt that this thread runs for, if it runs for one."""
    output = find_output()
    if output is not None:
        output.write(f"{line}\n".encode("utf-8", "replace"))


def replace_streams(find: Callable[[], Lines | None]) -> None:
    """Pass what is printed to the output that `find` returns for this thread, if any."""
    sys.stdout, sys.stderr = _Stream(sys.stdout, find), _Stream(sys.stderr, find)


def install() -> None:
    """Let this process give each attempt what its threads print and log. Call it once, in the main thread.

    Records of the level INFO reach the output of attempts; the level of the other handlers stays.
    """
    replace_streams(find_output)
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setLevel(max(handler.level, root.level))
        handler.addFilter(lambda record: find_output() is None)
    added = _Handler()
    added.setFormatter(logging.Formatter(_FORMAT))
    root.addHandler(added)
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    _inherit()


def _inherit() -> None:
    """Let a new thread belong to the attempt of the thread that starts it."""
    start = threading.Thread.start

    def start_with_output(self: threading.Thread) -> None:
        _set(self, _outputs.get(threading.current_thread()))
        start(self)

    threading.Thread.start = start_with_output
