"""Authenticate webhook deliveries by an HMAC over time, delivery id, target and body."""

import hashlib
import hmac
import secrets as random
import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from trace_etl.model.errors import Unauthenticated
from trace_etl.secret_store import SecretStore
from trace_etl.state.routing.webhooks import WebhookSource

_VERSION = "v2="
_VALID_SECRETS = 2  # the current secret and, during a rotation, the previous one
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Signature:
    """The signature headers of a delivery."""

    timestamp: str
    delivery_id: str
    target: str
    """`{org}/{dag}/{job}`, with the org as in the URL, or an empty org if the URL names none."""
    signature: str

    def verify(self, body: bytes, secrets: list[bytes], *, window: timedelta) -> None:
        """Check that one of the secrets signed the delivery recently. Raises Unauthenticated."""
        if not self.timestamp.isascii() or not self.timestamp.isdecimal():
            raise Unauthenticated("X-Trace-Timestamp must be seconds since 1970")
        signature = self.signature.removeprefix(_VERSION)
        # Compare with every secret in constant time, so that the response time reveals nothing.
        matches = [
            hmac.compare_digest(self._compute_digest(body, s), signature.encode()) for s in secrets
        ]
        if not self.signature.startswith(_VERSION) or not any(matches):
            raise Unauthenticated(
                "unknown webhook, or the signature is not valid; check the URL and the secret"
            )
        if abs(time.time() - int(self.timestamp)) > window.total_seconds():
            raise Unauthenticated("X-Trace-Timestamp is too far from the current time; sign again")

    def _compute_digest(self, body: bytes, secret: bytes) -> bytes:
        signed = sign(body, secret, self.timestamp, self.delivery_id, self.target)
        return signed.removeprefix(_VERSION).encode()


def sign(body: bytes, secret: bytes, timestamp: str, delivery_id: str, target: str) -> str:
    """Return the signature header of a delivery."""
    head = f"{timestamp}\n{delivery_id}\n{target}\n".encode()
    return _VERSION + hmac.new(secret, head + body, hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class WebhookSecrets:
    """Secrets that sign deliveries. The first two lines of each are both valid, for rotation."""

    store: SecretStore
    window: timedelta

    def get_secrets(self, source: WebhookSource | None) -> list[bytes]:
        """Return two secrets. A secret that is not configured is random and matches no signature.

        So a delivery to an unknown source, or to a source without a secret, gets the same answer in the
        same time as a delivery with a wrong signature.
        """
        configured = self._read(source) if source else []
        unknown = [random.token_bytes(32) for _ in range(_VALID_SECRETS)]
        return [*configured, *unknown][:_VALID_SECRETS]

    def find(self, org_id: UUID, name: str) -> bytes | None:
        """Return the current value of a secret; None if it is not configured, or empty."""
        values = self._read_lines(org_id, name)
        return values[0] if values else None

    def _read(self, source: WebhookSource) -> list[bytes]:
        name = str(source.options["secret"])
        secrets = self._read_lines(source.org_id, name)
        if not secrets:
            _log.warning("webhook_secret_missing", job_id=str(source.job_id), secret=name)
        return secrets

    def _read_lines(self, org_id: UUID, name: str) -> list[bytes]:
        lines = (self.store.find(org_id, name) or b"").splitlines()
        return [line.strip() for line in lines if line.strip()]
