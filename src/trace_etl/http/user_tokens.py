"""Authenticate users and services: verify bearer tokens with the public keys of a directory."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Annotated, Any
from uuid import UUID

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import Depends, Request

from trace_etl.model.errors import Forbidden, Unauthenticated

ISSUER = "trace"
AUDIENCE = "trace.user"
SERVICE_AUDIENCE = "trace.service"
_REQUIRED = ["iss", "aud", "sub", "iat", "exp", "jti", "org_id"]
_CACHE_SIZE = 1024


@dataclass(frozen=True)
class User:
    """The user or service that a verified token names. Roles are not in the token but in the database."""

    org_id: UUID
    name: str


class UserKeys:
    """Public keys from a directory (`{kid}.pub.pem` or `{kid}.pem`), with a cache of verified tokens.

    Adding or removing a key file takes effect at the next call.
    """

    audience = AUDIENCE
    kind = "user"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys: dict[str, ec.EllipticCurvePublicKey] = {}
        self._loaded_version: int | None = None
        self._verified: OrderedDict[str, tuple[User, int]] = OrderedDict()
        self._lock = Lock()

    def verify(self, token: str) -> User:
        """Verify a token and return its user. Raises Unauthenticated."""
        with self._lock:
            self._refresh()
            known = self._verified.get(token)
            user, expires = known or self._check(token)
            if expires <= time.time():
                self._verified.pop(token, None)
                raise Unauthenticated("the token has expired; get a new one")
            if known is None:
                self._store(token, user, expires)
            return user

    def _refresh(self) -> None:
        version = self._directory.stat().st_mtime_ns
        if version != self._loaded_version:
            self._keys = _load_keys(self._directory)
            self._verified.clear()
            self._loaded_version = version

    def _store(self, token: str, user: User, expires: int) -> None:
        self._verified[token] = (user, expires)
        if len(self._verified) > _CACHE_SIZE:
            self._verified.popitem(last=False)

    def _check(self, token: str) -> tuple[User, int]:
        try:
            claims = jwt.decode(
                token,
                self._find_key(token),
                algorithms=["ES256"],
                audience=self.audience,
                issuer=ISSUER,
                options={"require": _REQUIRED, "strict_aud": True},
            )
            return _parse_user(claims, self.kind), int(claims["exp"])
        except jwt.ExpiredSignatureError as error:
            raise Unauthenticated("the token has expired; get a new one") from error
        except (jwt.InvalidTokenError, ValueError) as error:
            raise Unauthenticated("the token is not valid; get a new one") from error

    def _find_key(self, token: str) -> ec.EllipticCurvePublicKey:
        kid = jwt.get_unverified_header(token).get("kid")
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            raise jwt.InvalidTokenError("the token is signed by an unknown key")
        return key


def _load_keys(directory: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for path in directory.glob("*.pem"):
        pem = path.read_bytes()
        if b"PUBLIC KEY" in pem:  # skip private keys of the signer in the same directory
            key = serialization.load_pem_public_key(pem)
            if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
                keys[path.name.removesuffix(".pem").removesuffix(".pub")] = key
    return keys


class ServiceKeys(UserKeys):
    """Public keys of the service identities: processes of the platform that act for no user."""

    audience = SERVICE_AUDIENCE
    kind = "service"

    def knows(self, token: str) -> bool:
        """Return whether one of these keys may have signed the token. It is not verified yet."""
        with self._lock:
            self._refresh()
        try:
            return jwt.get_unverified_header(token).get("kid") in self._keys
        except jwt.InvalidTokenError:
            return False

    def require(self, token: str, service: str) -> None:
        """Check that the token belongs to a service. Raises Unauthenticated, Forbidden."""
        if self.verify(token).name != service:
            raise Forbidden(f"this call is only for the service {service}; send its token")


def _parse_user(claims: dict[str, Any], expected: str) -> User:
    kind, _, name = str(claims["sub"]).partition(":")
    if kind != expected or not name or "\0" in name:
        raise jwt.InvalidTokenError(f"`sub` does not name a {expected}")
    return User(UUID(str(claims["org_id"])), name)


def bearer_token(request: Request) -> str:
    """Return the bearer token of a request. Raises Unauthenticated."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("send the header `Authorization: Bearer TOKEN`")
    return token.strip()


async def current_user(request: Request) -> User:
    """Return the caller, verified with `app.state.user_keys`. Raises Unauthenticated."""
    keys: UserKeys = request.app.state.user_keys
    return keys.verify(bearer_token(request))


UserDep = Annotated[User, Depends(current_user)]
