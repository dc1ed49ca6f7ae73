"""Signing keys (ES256), and the tokens of users, services and workers."""

import secrets
import uuid
from collections.abc import Mapping
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
_USER_AUDIENCE, _SERVICE_AUDIENCE = "trace.user", "trace.service"
_TIME_FORMAT = "%Y%m%dT%H%M%S%f"
# Capability tokens live at most a day; one more hour allows for clock differences.
TASK_KEY_RETENTION = timedelta(hours=25)


@dataclass(frozen=True)
class Rotation:
    """The key ids after a rotation of the signing key."""

    signs: str
    verify: list[str]
    """Older keys, kept until their last token has expired."""
    pruned: list[str]


def ensure_task_key(directory: Path) -> None:
    """Create the first signing key of capability tokens."""
    if not _list_private_keys(directory):
        _make_key(directory / f"{_make_key_id('task', datetime.now(UTC))}.pem")


def ensure_certificate_key(directory: Path) -> None:
    """Create the key that signs manifests. It is never deleted: manifests do not expire."""
    if not _list_private_keys(directory):
        _make_key(directory / f"{_make_key_id('certificate', datetime.now(UTC))}.pem")


def rotate_task_key(directory: Path, *, now: datetime | None = None) -> Rotation:
    """Create a new signing key; delete the keys whose last token has expired."""
    now = now or datetime.now(UTC)
    new = directory / f"{_make_key_id('task', now)}.pem"
    _make_key(new)
    known = _list_private_keys(directory)
    expired = [old for old, successor in pairwise(known) if _has_expired(successor, now)]
    for path in expired:
        path.unlink()
    return Rotation(
        signs=known[-1].stem,
        verify=[path.stem for path in known[:-1] if path not in expired],
        pruned=[path.stem for path in expired],
    )


def _has_expired(successor: Path, now: datetime) -> bool:
    """Return whether the last token of the key before `successor` has expired."""
    try:
        moment = datetime.strptime(successor.stem.rpartition("-")[2], _TIME_FORMAT)
    except ValueError:
        return False  # not a name of this program: its age is unknown
    return moment.replace(tzinfo=UTC) + TASK_KEY_RETENTION < now


def ensure_user_key(directory: Path) -> Path:
    """Create the key pair of user tokens if needed; return the path of the newest private key."""
    return _ensure_key_pair(directory, "user")


def _ensure_key_pair(directory: Path, purpose: str) -> Path:
    """Create a key pair if needed; return the path of the newest private key.

    Public keys have a directory of their own, for the processes that verify tokens.
    """
    known = _list_private_keys(directory)
    private = known[-1] if known else directory / f"{_make_key_id(purpose, datetime.now(UTC))}.pem"
    if not known:
        _make_key(private)
    public = private_files.make_directory(directory / "public")
    for old in directory.glob(f"*{_PUBLIC}"):  # an earlier release kept them beside the private key
        old.replace(public / old.name)
    if not (public / f"{private.stem}{_PUBLIC}").exists():
        private_files.write(public / f"{private.stem}{_PUBLIC}", _read_public_key(private))
    return private


def ensure_worker_token(path: Path) -> None:
    """Create the token that workers use to claim tasks."""
    if not path.exists() or not path.read_text().strip():
        private_files.write(path, f"{secrets.token_urlsafe(32)}\n")


def rotate_worker_token(path: Path) -> None:
    """Add a new first token; the previous one stays valid until the next rotation."""
    old = path.read_text().split()
    private_files.write(path, "".join(f"{t}\n" for t in [secrets.token_urlsafe(32), *old[:1]]))


def ensure_user_token(path: Path, key: Path, *, now: datetime | None = None) -> None:
    """Create the bearer token of the local user, or renew it if it expires soon."""
    now = now or datetime.now(UTC)
    if not _is_valid(path, key, now):
        private_files.write(path, f"{sign_user_token(key, LOCAL_USER, now=now)}\n")


def ensure_service_tokens(directory: Path, tokens: Mapping[str, Path]) -> None:
    """Create or renew the tokens of services, each in its own file, and the key that signs them.

    A service has no user: no administrator can disable it, and its token opens only its own calls.
    """
    key, now = _ensure_key_pair(directory, "service"), datetime.now(UTC)
    for service, path in tokens.items():
        if not _is_valid(path, key, now, _SERVICE_AUDIENCE):
            _write_service_token(path, key, service, now)


def rotate_service_key(directory: Path, tokens: Mapping[str, Path]) -> Rotation:
    """Create a new key for service tokens and sign new tokens with it.

    The previous key verifies until the next rotation, for requests that are on their way.
    """
    now = datetime.now(UTC)
    _make_key(directory / f"{_make_key_id('service', now)}.pem")
    key = _ensure_key_pair(directory, "service")
    for service, path in tokens.items():
        _write_service_token(path, key, service, now)
    *old, previous, _ = [None, *_list_private_keys(directory)]
    for path in filter(None, old):
        path.unlink()
        (directory / "public" / f"{path.stem}{_PUBLIC}").unlink(missing_ok=True)
    return Rotation(
        signs=key.stem,
        verify=[previous.stem] if previous else [],
        pruned=[path.stem for path in filter(None, old)],
    )


def _write_service_token(path: Path, key: Path, service: str, now: datetime) -> None:
    private_files.make_directory(path.parent)
    token = _sign_token(key, f"service:{service}", now, _USER_LIFE, _SERVICE_AUDIENCE)
    private_files.write(path, f"{token}\n")


def sign_user_token(key: Path, name: str, *, now: datetime, life: timedelta = _USER_LIFE) -> str:
    """Sign a bearer token that identifies a user. The role of the user is in Postgres state."""
    return _sign_token(key, f"user:{name}", now, life)


def _sign_token(
    key: Path, subject: str, now: datetime, life: timedelta, audience: str = _USER_AUDIENCE
) -> str:
    claims = {
        "iss": "trace",
        "aud": audience,
        "sub": subject,
        "org_id": LOCAL_ORG,
        "iat": now,
        "exp": now + life,
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode(claims, key.read_bytes(), algorithm="ES256", headers={"kid": key.stem})


def _list_private_keys(directory: Path) -> list[Path]:
    return sorted(p for p in directory.glob("*.pem") if not p.name.endswith(_PUBLIC))


def _make_key_id(purpose: str, moment: datetime) -> str:
    # Sortable: the last key by name is the newest, and signs.
    return f"{purpose}-{moment:{_TIME_FORMAT}}"


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


def _read_public_key(private: Path) -> bytes:
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _is_valid(path: Path, key: Path, now: datetime, audience: str = _USER_AUDIENCE) -> bool:
    try:
        claims = jwt.decode(
            path.read_text().strip(),
            _read_public_key(key),
            algorithms=["ES256"],
            audience=audience,
            options={"verify_exp": False, "verify_iat": False},
        )
    except (FileNotFoundError, jwt.InvalidTokenError):
        return False
    return datetime.fromtimestamp(claims["exp"], UTC) - now > _RENEW_BEFORE
