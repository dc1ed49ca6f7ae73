"""Who may deliver: signatures over time, delivery id and body, made with a source's secret."""

import hashlib
import hmac
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from trace_etl.model.errors import Unauthenticated, Unavailable

_VERSION = "v1="
_NOBODY = b"a webhook that nobody declared"


@dataclass(frozen=True)
class Signature:
    """What a delivery says of itself, in its headers."""

    timestamp: str
    delivery_id: str
    signature: str

    def verify(self, body: bytes, secrets: list[bytes], *, window: timedelta) -> None:
        """Raise Unauthenticated unless one of the secrets made it, a short while ago."""
        if not self.timestamp.isascii() or not self.timestamp.isdecimal():
            raise Unauthenticated("X-Trace-Timestamp must be seconds since 1970")
        given = self.signature.removeprefix(_VERSION)
        # Every secret is tried and every digest compared whole: time tells nothing.
        good = [hmac.compare_digest(self._digest(body, s), given.encode()) for s in secrets]
        if not self.signature.startswith(_VERSION) or not any(good):
            raise Unauthenticated("there is no such webhook, or the signature does not verify")
        if abs(time.time() - int(self.timestamp)) > window.total_seconds():
            raise Unauthenticated("the delivery is too old, or a clock is wrong; sign it anew")

    def _digest(self, body: bytes, secret: bytes) -> bytes:
        signed = f"{self.timestamp}.{self.delivery_id}.".encode() + body
        return hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()


@dataclass(frozen=True)
class WebhookSecrets:
    """A directory with one file a secret; its first two lines are valid at once, for rotation."""

    directory: Path | None
    window: timedelta
    org_id: UUID
    """Whose webhooks are meant when a delivery names no org."""

    def of(self, name: str | None) -> list[bytes]:
        """The valid secrets of a name; one that matches nothing without a name."""
        if name is None:
            return [_NOBODY + time.time_ns().to_bytes(8, "big")]
        try:
            lines = (self.directory / name).read_bytes().split() if self.directory else []
        except OSError:
            lines = []
        if not lines:
            raise Unavailable(f"the secret {name!r} of this webhook is not configured here")
        return lines[:2]
