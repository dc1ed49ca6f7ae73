"""The output of an attempt: bounded, without secrets, sent to the Dispatcher in parts."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from trace_etl.worker.masking import SecretMask

MAX_BYTES = 1024 * 1024
_PART_BYTES = 32 * 1024


@dataclass
class AttemptLog:
    """Collects output and sends it in parts. Safe to use from several threads."""

    send: Callable[[int, str], bool]
    """Sends a part with its position. False: it was not sent, and is sent again later."""
    secrets: SecretMask = field(default_factory=SecretMask)
    _pending: bytearray = field(default_factory=bytearray)
    _received: int = 0
    _position: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_output(self) -> bool:
        """Whether output waits to be sent, or is being sent."""
        return bool(self._pending)

    def write(self, content: bytes) -> None:
        """Add output. What exceeds the limit is dropped."""
        with self._lock:
            room = MAX_BYTES - self._received
            if len(content) > room >= 0:
                content = content[:room] + b"\n[more output was dropped]\n"
                self._received = MAX_BYTES + 1
            elif room < 0:
                return
            else:
                self._received += len(content)
            self._pending += content

    def flush(self, *, is_end: bool = False) -> None:
        """Send what is complete: whole lines, and all of it at the end."""
        with self._sending:
            while part := self._take(is_end):
                text = self.secrets.mask(part.decode("utf-8", "replace")).replace("\x00", "\ufffd")
                if not self.send(self._position, text):
                    return
                self._position += len(text.encode())
                with self._lock:
                    del self._pending[: len(part)]

    def _take(self, is_end: bool) -> bytes:
        """Return the next part. It ends with a line, so that no secret is cut into two parts."""
        with self._lock:
            content = bytes(self._pending[:_PART_BYTES])
            end = content.rfind(b"\n") + 1
            if end == 0 and len(content) == _PART_BYTES:
                # A long line: keep back what could be the start of a secret.
                end = max(1, len(content) - self.secrets.longest)
            if is_end and len(self._pending) < _PART_BYTES:
                end = len(content)
            return content[:end]
