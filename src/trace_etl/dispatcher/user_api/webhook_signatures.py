"""Authenticate webhook deliveries by an HMAC over time, delivery id and body."""

import hashlib
import hmac
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from trace_etl.model.errors import Unauthenticated, Unavailable

_VERSION = "v1="
_UNKNOWN_WEBHOOK = b"secret of an unknown webhook"


@dataclass(frozen=True)
class Signature:
    """The signature headers of a delivery."""

    timestamp: str
    delivery_id: str
    signature: str

    def verify(self, body: bytes, secrets: list[bytes], *, window: timedelta) -> None:
        """Check that one of the secrets signed the delivery recently. Raises Unauthenticated."""
        if not self.timestamp.isascii() or not self.timestamp.isdecimal():
            raise Unauthenticated("X-Trace-Timestamp must be seconds since 1970")
        signature = self.signature.removeprefix(_VERSION)
        # Compare with every secret in constant time, so that the response time reveals nothing.
        matches = [hmac.compare_digest(self._digest(body, s), signature.encode()) for s in secrets]
        if not self.signature.startswith(_VERSION) or not any(matches):
            raise Unauthenticated("unknown webhook, or the signature is not valid")
        if abs(time.time() - int(self.timestamp)) > window.total_seconds():
            raise Unauthenticated("X-Trace-Timestamp is too far from the current time; sign again")

    def _digest(self, body: bytes, secret: bytes) -> bytes:
        signed = f"{self.timestamp}.{self.delivery_id}.".encode() + body
        return hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()


@dataclass(frozen=True)
class WebhookSecrets:
    """Secrets in a directory, one file each. The first two lines are both valid, for rotation."""

    directory: Path | None
    window: timedelta
    org_id: UUID
    """The org of deliveries that name no org."""

    def get_secrets(self, name: str | None) -> list[bytes]:
        """Return the valid secrets of a name. Without a name, return a secret that matches no signature.

        Raises Unavailable if the secret is not configured.
        """
        if name is None:
            return [_UNKNOWN_WEBHOOK + time.time_ns().to_bytes(8, "big")]
        try:
            lines = (self.directory / name).read_bytes().split() if self.directory else []
        except OSError:
            lines = []
        if not lines:
            raise Unavailable(
                f"the secret {name!r} of this webhook is not configured on this Dispatcher"
            )
        return lines[:2]
