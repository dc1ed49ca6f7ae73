"""Capability tokens of task attempts: ES256 JWTs, minted per attempt and verified once."""

import binascii
import hashlib
import itertools
import time
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from trace_etl.api.task.capability import AUDIENCE, ISSUER, Reads, parse_reads
from trace_etl.dispatcher.task_api.authorization.permissions import (
    AttemptPrefixes,
    DatasetGrant,
    TokenScope,
)
from trace_etl.dispatcher.task_api.authorization.watched_files import WatchedPath
from trace_etl.model.errors import Forbidden, Unauthenticated
from trace_etl.model.task import Fence

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_PREFIXES = ("read_prefixes", "write_prefixes")
_ES256 = ec.ECDSA(Prehashed(SHA256()))
_CLOCK_SKEW = 60  # seconds between replicas' clocks; expiry is checked exactly
_REQUIRED = ["iss", "aud", "sub", "iat", "exp", "jti"]


class Capability(NamedTuple):
    """A verified token: the attempt it is for, and its permissions."""

    org_id: UUID
    task_id: UUID
    attempt: int
    issued_at: int
    expires_at: int
    outputs: dict[UUID, DatasetGrant]
    """Outputs that the attempt may write. Its events and publications may name only these."""
    checked_inputs: dict[UUID, DatasetGrant]
    """Inputs that the attempt may invalidate, because its operator checks them."""
    scope: dict[str, Any] | None
    """The scope of the task. None in a token of an older release."""
    reads: Reads = Reads(())
    """The inputs of the attempt."""
    prefixes: AttemptPrefixes | None = None
    """The scratch and export prefixes of the attempt. None in a token of an older release."""

    def require(self, fence: Fence) -> None:
        """Check that the body names this task and attempt. Raises Forbidden."""
        if fence.task_id != self.task_id or fence.attempt != self.attempt:
            raise Forbidden(
                "the token is for another task or attempt; send the token of this attempt"
            )

    def is_nearly_expired(self, now: float) -> bool:
        """Return whether two thirds of its lifetime have passed."""
        return now > self.issued_at + (self.expires_at - self.issued_at) * 2 / 3


class Signer(Protocol):
    """Holder of ES256 keys: PEM files or a KMS."""

    def kid(self) -> str:
        """Return the id of the current signing key."""
        ...

    def sign(self, kid: str, message: bytes) -> bytes:
        """Return the raw signature (r and s, 32 bytes each)."""
        ...

    def jwks(self) -> dict[str, Any]: ...

    def public_key(self, kid: str) -> ec.EllipticCurvePublicKey | None: ...

    def generation(self) -> int:
        """Return a number that changes whenever a key is added or removed."""
        ...


class PemSigner:
    """Keys in a directory, one PEM file each. The file stem is the `kid`. The last key by name signs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._newest = ""
        self._generation = 0
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self._watched = WatchedPath(directory, self._load)
        self._watched.refresh()

    def generation(self) -> int:
        self._watched.refresh()
        return self._generation

    def kid(self) -> str:
        self._watched.refresh()
        return self._newest

    def sign(self, kid: str, message: bytes) -> bytes:
        # Hash with `hashlib`, which is faster: the key would look up SHA-256 for each signature.
        digest = hashlib.sha256(message).digest()
        r, s = decode_dss_signature(self._keys[kid].sign(digest, _ES256))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def public_key(self, kid: str) -> ec.EllipticCurvePublicKey | None:
        self._watched.refresh()
        if kid not in self._keys:
            self._watched.refresh_now()  # another replica may have rotated within the last millisecond
        key = self._keys.get(kid)
        return key.public_key() if key else None

    def jwks(self) -> dict[str, Any]:
        self._watched.refresh()
        return {
            "keys": [_make_jwk(kid, key.public_key()) for kid, key in sorted(self._keys.items())]
        }

    def _load(self) -> None:
        keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        for path in self._directory.glob("*.pem"):
            try:
                key = load_pem_private_key(path.read_bytes(), password=None)
            except FileNotFoundError:
                continue  # removed by a rotation meanwhile
            if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
                raise ValueError(f"{path.name} is not a P-256 key; replace or delete it")
            keys[path.stem] = key
        if not keys:
            raise ValueError(f"no signing key in {self._directory}; add one")
        self._generation += keys.keys() != self._keys.keys()
        self._keys = keys
        self._newest = max(keys)


def _make_jwk(kid: str, key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    point = key.public_numbers()
    x, y = (_encode_base64(n.to_bytes(32, "big")).decode() for n in (point.x, point.y))
    return {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": kid, "x": x, "y": y}


class TaskTokens:
    """Mint and verify tokens. A token minted or verified by this process is not verified again."""

    def __init__(self, signer: Signer, *, cache_size: int = 20_000) -> None:
        self._signer = signer
        self._generation = signer.generation()
        self._known: OrderedDict[bytes, Capability] = OrderedDict()
        self._cache_size = cache_size
        # A `jti` must be unique, not secret; the signature protects the token.
        self._series = token_hex(12)
        self._numbers = itertools.count()

    def kid(self) -> str:
        """Return the id of the current signing key."""
        return self._signer.kid()

    def mint(self, scope: TokenScope, life_seconds: int, kid: str | None = None) -> str:
        """Mint a token. Callers that mint many tokens pass `kid`, so that it is looked up only once."""
        issued_at = int(time.time())
        expires_at = issued_at + life_seconds
        org_id, task_id, attempt, attempt_prefix, permissions, task_scope = scope
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": f"task:{task_id}",
            "org_id": org_id,
            "task_id": task_id,
            "attempt": attempt,
            **permissions.claims(attempt_prefix),
            "scope": task_scope,
        }
        token = self._sign_token(claims, issued_at, expires_at, kid or self.kid())
        capability = Capability(
            org_id=org_id,
            task_id=task_id,
            attempt=attempt,
            issued_at=issued_at,
            expires_at=expires_at,
            outputs=permissions.outputs(attempt_prefix),
            checked_inputs=permissions.checked_inputs,
            scope=task_scope,
            reads=permissions.reads,
            prefixes=permissions.attempt_prefixes(attempt_prefix),
        )
        self._store(token, capability)
        return token

    def _sign_token(self, scope: dict[str, Any], issued_at: int, expires_at: int, kid: str) -> str:
        scope["iat"] = issued_at
        scope["exp"] = expires_at
        scope["jti"] = f"{self._series}{next(self._numbers):08x}"
        message = b"%b.%b" % (_encode_header(kid), _encode_base64(orjson.dumps(scope)))
        return (b"%b.%b" % (message, _encode_base64(self._signer.sign(kid, message)))).decode()

    def verify(self, token: str | None) -> Capability:
        """Verify a token and return its capability. Raises Unauthenticated."""
        if not token:
            raise Unauthenticated("X-Trace-Task-Capability is missing; send the token of the claim")
        if self._generation != self._signer.generation():
            self._generation = self._signer.generation()
            self._known.clear()  # tokens of a removed key are no longer valid
        capability = self._known.get(_hash_token(token))
        if capability is None:
            capability = self._verify(token)
            self._store(token, capability)
        if capability.expires_at <= time.time():
            raise Unauthenticated("the capability token has expired; heartbeats return a new one")
        return capability

    def renew(self, token: str) -> str:
        """Mint a token with the same scope and a new lifetime.

        The caller must have verified the token and the fence.
        """
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
        life = claims["exp"] - claims["iat"]
        now = int(time.time())
        return self._sign_token(claims, now, now + life, self.kid())

    def jwks(self) -> dict[str, Any]:
        return self._signer.jwks()

    def _verify(self, token: str) -> Capability:
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._signer.public_key(kid) if isinstance(kid, str) else None
            if key is None:
                raise Unauthenticated(
                    "the capability token is signed by an unknown key; send the token of the claim"
                )
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=["ES256"],
                audience=AUDIENCE,
                issuer=ISSUER,
                leeway=_CLOCK_SKEW,
                options={"require": _REQUIRED, "strict_aud": True},
            )
            return _read_capability(claims)
        except (jwt.PyJWTError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unauthenticated(
                "the capability token is not valid; send the token of the claim"
            ) from error

    def _store(self, token: str, capability: Capability) -> None:
        self._known[_hash_token(token)] = capability
        if len(self._known) > self._cache_size:
            self._known.popitem(last=False)


@lru_cache(maxsize=16)
def _encode_header(kid: str) -> bytes:
    return _encode_base64(orjson.dumps({"alg": "ES256", "kid": kid, "typ": "JWT"}))


def _encode_base64(data: bytes) -> bytes:
    # The same result as `base64.urlsafe_b64encode`, without its intermediate copies.
    return binascii.b2a_base64(data, newline=False).translate(_URL_SAFE).rstrip(b"=")


def _hash_token(token: str) -> bytes:
    """Return a cache key that does not reveal the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _read_capability(claims: dict[str, Any]) -> Capability:
    if claims["sub"] != f"task:{claims['task_id']}":
        raise ValueError("sub and task_id differ")
    if type(claims["attempt"]) is not int:
        raise ValueError("attempt is not a number")
    if not isinstance(claims.get("scope", {}), dict):
        raise ValueError("scope is not an object")
    s3 = claims["s3"]
    if {type(claims["datasets"]), *(type(s3[k]) for k in _PREFIXES)} != {list}:
        raise ValueError("datasets and prefixes are lists")
    grants = [_read_dataset_grant(entry) for entry in claims["datasets"]]
    writes = frozenset(str(p) for p in s3["write_prefixes"])
    checked = {UUID(text) for text in claims.get("doubts", [])}
    return Capability(
        org_id=UUID(claims["org_id"]),
        task_id=UUID(claims["task_id"]),
        attempt=claims["attempt"],
        issued_at=int(claims["iat"]),
        expires_at=int(claims["exp"]),
        # An older release did not name the outputs.
        outputs={g.dataset_uuid: g for g in grants if g.output or g.url in writes},
        checked_inputs={
            g.dataset_uuid: g for g in grants if g.dataset_uuid in checked and not g.output
        },
        scope=claims.get("scope"),
        reads=parse_reads(claims),
        prefixes=_read_attempt_prefixes(s3),
    )


def _read_dataset_grant(entry: dict[str, Any]) -> DatasetGrant:
    return DatasetGrant(
        UUID(entry["dataset_uuid"]),
        UUID(entry["dataset_version"]),
        entry["storage_ref"],
        str(entry.get("output", "")),
    )


def _read_attempt_prefixes(s3: dict[str, Any]) -> AttemptPrefixes | None:
    if "scratch_prefix" not in s3:
        return None
    return AttemptPrefixes(str(s3["scratch_prefix"]), str(s3["export_prefix"]))
