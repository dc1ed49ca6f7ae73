"""Verify capability tokens with the public keys of the Dispatcher, which are cached."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import create_default_context
from typing import Any
from uuid import UUID

import httpx
import jwt
import structlog

from trace_etl.api.task.capability import AUDIENCE, ISSUER, Reads, parse_reads
from trace_etl.model.errors import Unauthenticated, Unavailable

_JWKS_PATH = "/internal/jwks/task"
_REQUIRED = ["iss", "aud", "sub", "iat", "exp", "jti"]
_CLOCK_SKEW = 60  # seconds between clocks; expiry is checked exactly
MAX_AGE = 300.0
_MIN_INTERVAL = 1.0
_RETRY_INTERVAL = 10.0
_TIMEOUT = 5.0
_CACHE_SIZE = 4096
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class TaskCapability:
    """A token with a valid signature: the attempt it is for, and what the attempt may read."""

    org_id: UUID
    task_id: UUID
    attempt: int
    expires_at: int
    reads: Reads
    scratch_prefix: str | None
    """Where large results go, as `s3://bucket/prefix/`. None in a token of an older release."""

    def require_unexpired(self) -> None:
        """Raise Unauthenticated if the token has expired."""
        if self.expires_at <= time.time():
            raise Unauthenticated("the capability token has expired; heartbeats return a new one")


class TaskKeys:
    """The keys of the Dispatcher's JWKS. A refresh replaces all of them, so old keys are dropped.

    Keys are fetched when a token names an unknown one, at most once per second, and in the background
    when they are five minutes old. While the Dispatcher is down, the known keys stay valid.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None
        self.generation = 0
        """A number that changes with the keys."""

    async def find(self, kid: str) -> jwt.PyJWK:
        """Return a key. Raises Unauthenticated if it is unknown, Unavailable without any keys."""
        if kid not in self._keys:
            await self._refresh(asked_at=time.monotonic())
        if kid in self._keys:
            return self._keys[kid]
        if not self._keys:
            raise Unavailable("the keys of capability tokens cannot be fetched; try again")
        raise Unauthenticated(
            "the capability token is signed by an unknown key; send the token of the claim"
        )

    def refresh_old(self) -> None:
        """Fetch old keys again, without waiting for it."""
        now = time.monotonic()
        if now - self._fetched_at > MAX_AGE and now - self._tried_at > _RETRY_INTERVAL:
            self._tried_at = now
            self._background = asyncio.create_task(self._fetch())

    async def _refresh(self, asked_at: float) -> None:
        async with self._lock:
            if self._tried_at > asked_at:
                return  # another caller fetched them meanwhile
            # Made-up key ids must not become calls of the Dispatcher.
            await asyncio.sleep(max(0.0, self._tried_at + _MIN_INTERVAL - time.monotonic()))
            self._tried_at = time.monotonic()
            await self._fetch()

    async def _fetch(self) -> None:
        try:
            answer = await self._http.get(_JWKS_PATH)
            answer.raise_for_status()
            found = jwt.PyJWKSet.from_dict(answer.json()).keys
        except (httpx.HTTPError, jwt.PyJWTError, ValueError) as error:
            _log.warning("jwks_unavailable", error=repr(error))
            return
        keys = {key.key_id: key for key in found if key.key_id}
        self.generation += keys.keys() != self._keys.keys()
        self._keys, self._fetched_at = keys, time.monotonic()


class TaskTokenVerifier:
    """Verifies tokens. A token that was verified is not verified again until the keys change."""

    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys
        self._generation = keys.generation
        self._known: OrderedDict[bytes, TaskCapability] = OrderedDict()

    async def verify(self, token: str | None) -> TaskCapability:
        """Return what a token with a valid signature grants, even if it has expired.

        Raises Unauthenticated or Unavailable. The caller records the query, then checks the expiry.
        """
        if not token:
            raise Unauthenticated("X-Trace-Task-Capability is missing; send the token of the claim")
        self._keys.refresh_old()
        if self._generation != self._keys.generation:
            self._generation = self._keys.generation
            self._known.clear()
        fingerprint = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        capability = self._known.get(fingerprint)
        if capability is None:
            capability = self._known[fingerprint] = await self._verify(token)
            if len(self._known) > _CACHE_SIZE:
                self._known.popitem(last=False)
        return capability

    async def _verify(self, token: str) -> TaskCapability:
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            if not isinstance(kid, str):
                raise jwt.InvalidTokenError("no kid")
            claims = jwt.decode(
                token,
                await self._keys.find(kid),
                algorithms=["ES256"],
                audience=AUDIENCE,
                issuer=ISSUER,
                leeway=_CLOCK_SKEW,
                options={"require": _REQUIRED, "strict_aud": True, "verify_exp": False},
            )
            return _parse(claims)
        except (jwt.PyJWTError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unauthenticated(
                "the capability token is not valid; send the token of the claim"
            ) from error


def _parse(claims: dict[str, Any]) -> TaskCapability:
    if claims["sub"] != f"task:{claims['task_id']}":
        raise ValueError("sub and task_id differ")
    if type(claims["attempt"]) is not int:
        raise ValueError("attempt is not a number")
    scratch = claims["s3"].get("scratch_prefix")
    return TaskCapability(
        UUID(claims["org_id"]),
        UUID(claims["task_id"]),
        claims["attempt"],
        int(claims["exp"]),
        parse_reads(claims),
        None if scratch is None else str(scratch),
    )


@asynccontextmanager
async def open_task_keys(url: str, ca: Path) -> AsyncGenerator[TaskKeys]:
    """Fetch keys over TLS, without a token: public keys are no secret."""
    context = create_default_context(cafile=str(ca))
    async with httpx.AsyncClient(
        base_url=url, verify=context, trust_env=False, timeout=_TIMEOUT
    ) as http:
        yield TaskKeys(http)
