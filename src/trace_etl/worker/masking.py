"""Remove secrets from texts that people read."""

import threading
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from urllib.parse import quote

_MASK = "***"
_MIN_LINE = 8


@dataclass
class SecretMask:
    """Secrets that must not be shown. Safe to use from several threads."""

    _secrets: list[str] = field(default_factory=list[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def longest(self) -> int:
        """The bytes of the longest secret."""
        return max((len(secret.encode()) for secret in self._secrets), default=0)

    def hide(self, secret: str) -> None:
        """Hide a secret as it is, in URLs and in JSON. Its long lines count as well."""
        lines = [line for line in secret.splitlines() if len(line) >= _MIN_LINE]
        plain = {secret, secret.strip(), *lines} - {""}
        added = {form for text in plain for form in (text, quote(text, ""), _escape(text))}
        with self._lock:
            # The longest first: a secret may contain another one.
            self._secrets = sorted({*self._secrets, *added}, key=len, reverse=True)

    def mask(self, text: str) -> str:
        """Return a text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text


def _escape(text: str) -> str:
    """Return a text as it is written inside a JSON string."""
    return encode_basestring_ascii(text)[1:-1]
