"""Signing keys (ES256) and the tokens made with them or beside them."""

import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trace_etl.lite.credentials import private_files

LOCAL_ORG = "00000000-0000-0000-0000-000000000001"
LOCAL_USER = "local"
_USER_LIFE = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=90)
_PUBLIC = ".pub.pem"
_MOMENT = "%Y%m%dT%H%M%S%f"
# No capability token lives longer than a day; the rest is for clocks that differ.
TASK_KEY_KEPT = timedelta(hours=25)


@dataclass(frozen=True)
class Rotation:
    """What a rotation of the signing key did, by key ids."""

    signs: str
    verify: list[str]
    """Superseded keys that are kept until their last token has expired."""
    pruned: list[str]


def ensure_task_key(directory: Path) -> None:
    """Make the first key that signs capability tokens."""
    if not _private_keys(directory):
        _make_key(directory / f"{_id('task', datetime.now(UTC))}.pem")


def rotate_task_key(directory: Path, *, now: datetime | None = None) -> Rotation:
    """Make a new signing key; drop those whose last token has expired."""
    now = now or datetime.now(UTC)
    new = directory / f"{_id('task', now)}.pem"
    _make_key(new)
    known = _private_keys(directory)
    spent = [old for old, successor in pairwise(known) if _is_spent(successor, now)]
    for path in spent:
        path.unlink()
    return Rotation(
        signs=known[-1].stem,
        verify=[path.stem for path in known[:-1] if path not in spent],
        pruned=[path.stem for path in spent],
    )


def _is_spent(successor: Path, now: datetime) -> bool:
    """Whether a key signed its last token so long ago that the token has expired."""
    try:
        moment = datetime.strptime(successor.stem.rpartition("-")[2], _MOMENT)
    except ValueError:
        return False  # not a name of ours: nobody knows since when it signs
    return moment.replace(tzinfo=UTC) + TASK_KEY_KEPT < now


def ensure_user_key(directory: Path) -> Path:
    """Make the key pair of user tokens, if needed; return the newest private key's path."""
    known = _private_keys(directory)
    private = known[-1] if known else directory / f"{_id('user', datetime.now(UTC))}.pem"
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


def rotate_worker_token(path: Path) -> None:
    """Put a new token first; the one before stays valid until the next rotation."""
    old = path.read_text().split()
    private_files.write(path, "".join(f"{t}\n" for t in [secrets.token_urlsafe(32), *old[:1]]))


def ensure_user_token(path: Path, key: Path, *, now: datetime | None = None) -> None:
    """Make or renew the local user's bearer token, where it is not good for some time yet."""
    now = now or datetime.now(UTC)
    if not _is_good(path, key, now):
        private_files.write(path, f"{sign_user_token(key, LOCAL_USER, now=now)}\n")


def sign_user_token(key: Path, name: str, *, now: datetime, life: timedelta = _USER_LIFE) -> str:
    """A bearer token that says who its holder is; what they may do is in Postgres state."""
    claims = {
        "iss": "trace",
        "aud": "trace.user",
        "sub": f"user:{name}",
        "org_id": LOCAL_ORG,
        "iat": now,
        "exp": now + life,
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode(claims, key.read_bytes(), algorithm="ES256", headers={"kid": key.stem})


def _private_keys(directory: Path) -> list[Path]:
    return sorted(p for p in directory.glob("*.pem") if not p.name.endswith(_PUBLIC))


def _id(purpose: str, moment: datetime) -> str:
    # Sortable: the newest by name is the one that signs.
    return f"{purpose}-{moment:{_MOMENT}}"


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
