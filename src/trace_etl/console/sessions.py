"""Sessions of people, and the one-time links that open them. Both are in memory only."""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

_MAX_SESSIONS = 10_000
_MAX_LINKS = 1_000
Clock = Callable[[], float]


@dataclass(frozen=True)
class Session:
    """One login of a person. `token` is their bearer token; it never reaches the browser."""

    token: str
    expires_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))


@dataclass
class Sessions:
    """The open sessions and unused links. The oldest ones are dropped if there are too many."""

    session_seconds: float
    link_seconds: float
    clock: Clock = time.monotonic
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict[str, Session])
    _links: OrderedDict[str, tuple[str, float]] = field(
        default_factory=OrderedDict[str, tuple[str, float]]
    )

    def create_link(self, token: str) -> str:
        """Return a code that opens one session with this token, once."""
        code = secrets.token_urlsafe(32)
        self._links[_hash_secret(code)] = (token, self.clock() + self.link_seconds)
        while len(self._links) > _MAX_LINKS:
            self._links.popitem(last=False)
        return code

    def redeem(self, code: str) -> str | None:
        """Return the token of a link and forget the link; None if it was used or has expired."""
        token, expires_at = self._links.pop(_hash_secret(code), ("", 0.0))
        return token if token and expires_at > self.clock() else None

    def open(self, token: str) -> tuple[str, Session]:
        """Open a session. Returns its secret id, which becomes the cookie."""
        key = secrets.token_urlsafe(32)
        session = Session(token, self.clock() + self.session_seconds)
        self._sessions[_hash_secret(key)] = session
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return key, session

    def find(self, key: str) -> Session | None:
        """Return the session of a cookie; None if there is none, or it has expired."""
        session = self._sessions.get(_hash_secret(key))
        if session is not None and session.expires_at <= self.clock():
            self.close(key)
            return None
        return session

    def close(self, key: str) -> None:
        """End a session."""
        self._sessions.pop(_hash_secret(key), None)


def _hash_secret(secret: str) -> str:
    # Keys are compared by dictionary lookup: of a hash, so that timing says nothing about the secret.
    return hashlib.sha256(secret.encode()).hexdigest()
