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

    _added: list[str] = field(default_factory=list[str])
    """Secrets whose forms `mask` computes when it is first called: most attempts print nothing."""
    _forms: list[str] = field(default_factory=list[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def longest(self) -> int:
        """The bytes of the longest secret."""
        return max((len(form.encode()) for form in self._list_forms()), default=0)

    def hide(self, secret: str) -> None:
        """Hide a secret as it is, in URLs and in JSON. Its long lines count as well."""
        with self._lock:
            self._added.append(secret)

    def mask(self, text: str) -> str:
        """Return a text without secrets."""
        for form in self._list_forms():
            text = text.replace(form, _MASK)
        return text

    def _list_forms(self) -> list[str]:
        """Return all forms of the secrets, the longest first: a secret may contain another one."""
        with self._lock:
            if self._added:
                forms = {form for secret in self._added for form in _find_forms(secret)}
                self._forms = sorted({*self._forms, *forms}, key=len, reverse=True)
                self._added.clear()
            return self._forms


def _find_forms(secret: str) -> set[str]:
    lines = [line for line in secret.splitlines() if len(line) >= _MIN_LINE]
    plain = {secret, secret.strip(), *lines} - {""}
    return {form for text in plain for form in (text, quote(text, ""), _escape(text))}


def _escape(text: str) -> str:
    """Return a text as it is written inside a JSON string."""
    return encode_basestring_ascii(text)[1:-1]
