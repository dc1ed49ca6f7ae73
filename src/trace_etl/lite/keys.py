"""Signing keys (ES256) and the tokens made with them or beside them."""

import secrets
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trace_etl.lite import private_files

LOCAL_ORG = "00000000-0000-0000-0000-000000000001"
_USER_LIFE = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=90)
_PUBLIC = ".pub.pem"


def ensure_task_key(directory: Path) -> None:
    """Make the first key that signs capability tokens."""
    if not _private_keys(directory):
        _make_key(directory / f"{_new_id('task')}.pem")


def ensure_user_key(directory: Path) -> Path:
    """Make the key pair of user tokens, if needed; return the newest private key's path."""
    known = _private_keys(directory)
    private = known[-1] if known else directory / f"{_new_id('user')}.pem"
    if not known:
        _make_key(private)
    public = private.with_suffix(_PUBLIC)
    if not public.exists():
        private_files.write(public, _public_pem(private))
    return private


def ensure_worker_token(path: Path) -> None:
    """Make the token workers claim tasks with."""
    if not path.exists() or not path.read_text().strip():
        private_files.write(path, f"{secrets.token_urlsafe(32)}\n")


def ensure_user_token(path: Path, key: Path, *, now: datetime | None = None) -> None:
    """Make or renew the local user's bearer token, where it is not good for some time yet."""
    now = now or datetime.now(UTC)
    if not _is_good(path, key, now):
        private_files.write(path, f"{_sign(key, now)}\n")


def _private_keys(directory: Path) -> list[Path]:
    return sorted(p for p in directory.glob("*.pem") if not p.name.endswith(_PUBLIC))


def _new_id(purpose: str) -> str:
    # Sortable: the newest by name is the one that signs.
    return f"{purpose}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"


def _make_key(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private_files.write(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _public_pem(private: Path) -> bytes:
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _sign(key: Path, now: datetime) -> str:
    claims = {
        "iss": "trace",
        "aud": "trace.user",
        "sub": "user:local",
        "org_id": LOCAL_ORG,
        "role": "admin",
        "iat": now,
        "exp": now + _USER_LIFE,
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode(claims, key.read_bytes(), algorithm="ES256", headers={"kid": key.stem})


def _is_good(path: Path, key: Path, now: datetime) -> bool:
    try:
        claims = jwt.decode(
            path.read_text().strip(),
            _public_pem(key),
            algorithms=["ES256"],
            audience="trace.user",
            options={"verify_exp": False, "verify_iat": False},
        )
    except (FileNotFoundError, jwt.InvalidTokenError):
        return False
    return datetime.fromtimestamp(claims["exp"], UTC) - now > _RENEW_BEFORE
