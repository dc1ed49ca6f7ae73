"""User bearer tokens: which are accepted and which are refused."""

import time
import uuid
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trace_etl.http.user_tokens import User, UserKeys
from trace_etl.lite.credentials import keys as lite_keys
from trace_etl.model.errors import Unauthenticated

ORG = uuid.UUID(lite_keys.LOCAL_ORG)


def claims(**changes: object) -> dict[str, object]:
    now = int(time.time())
    defaults: dict[str, object] = {
        "iss": "trace",
        "aud": "trace.user",
        "sub": "user:ada",
        "org_id": str(ORG),
        "iat": now,
        "exp": now + 60,
        "jti": str(uuid.uuid4()),
    }
    return {k: v for k, v in {**defaults, **changes}.items() if v is not None}


class Signer:
    def __init__(self, directory: Path, kid: str = "user-1") -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.public = self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.kid = kid
        (directory / f"{kid}.pub.pem").write_bytes(self.public)

    def token(self, *, headers: dict[str, object] | None = None, **changes: object) -> str:
        return jwt.encode(
            claims(**changes), self.private, "ES256", headers=headers or {"kid": self.kid}
        )


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


def test_a_token_signed_by_a_known_key_names_its_user(tmp_path: Path, signer: Signer) -> None:
    keys = UserKeys(tmp_path)
    token = signer.token()
    assert keys.verify(token) == keys.verify(token) == User(ORG, "ada")


def test_a_token_created_by_the_stack_is_accepted(tmp_path: Path) -> None:
    key = lite_keys.ensure_user_key(tmp_path)
    lite_keys.ensure_user_token(tmp_path / "user.jwt", key)
    user = UserKeys(tmp_path / "public").verify((tmp_path / "user.jwt").read_text().strip())
    assert user == User(ORG, "local")


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "trace.task"},
        {"aud": ["trace.user", "trace.task"]},
        {"iss": "unknown"},
        {"sub": "task:1"},
        {"sub": "user:"},
        {"org_id": "not-a-uuid"},
        {"sub": "user:a\0b"},
        {"exp": 1_000_000_000},
        {"iat": 32_000_000_000},
        {"exp": None},
        {"jti": None},
        {"org_id": None},
    ],
    ids=str,
)
def test_a_token_with_invalid_claims_is_refused(
    tmp_path: Path, signer: Signer, changes: dict[str, object]
) -> None:
    with pytest.raises(Unauthenticated):
        UserKeys(tmp_path).verify(signer.token(**changes))


@pytest.mark.parametrize("kid", ["user-2", "../user-1", 7, None])
def test_a_token_with_an_unknown_key_is_refused(
    tmp_path: Path, signer: Signer, kid: object
) -> None:
    headers: dict[str, object] = {} if kid is None else {"kid": kid}
    if isinstance(kid, int):
        with pytest.raises((jwt.InvalidTokenError, TypeError)):
            signer.token(headers=headers)
        return
    with pytest.raises(Unauthenticated):
        UserKeys(tmp_path).verify(signer.token(headers=headers or {"typ": "JWT"}))


def test_only_es256_verifies(tmp_path: Path, signer: Signer) -> None:
    keys = UserKeys(tmp_path)
    unsigned = jwt.encode(claims(), None, "none", headers={"kid": "user-1"})  # type: ignore[arg-type]
    secret = signer.public.replace(b"-", b"").replace(b"\n", b"")
    symmetric = jwt.encode(claims(), secret, "HS256", headers={"kid": "user-1"})
    for token in (unsigned, symmetric, "", "a.b.c", signer.token() + "x"):
        with pytest.raises(Unauthenticated):
            keys.verify(token)


def test_a_key_of_another_signer_does_not_verify(tmp_path: Path, signer: Signer) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(Unauthenticated):
        UserKeys(tmp_path).verify(Signer(elsewhere).token())


def test_a_verified_token_still_expires(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = UserKeys(tmp_path)
    token = signer.token()
    keys.verify(token)
    later = time.time() + 61
    monkeypatch.setattr("trace_etl.http.user_tokens.time.time", lambda: later)
    with pytest.raises(Unauthenticated, match="expired"):
        keys.verify(token)


def test_tokens_of_a_removed_key_are_refused_and_a_new_key_works_immediately(
    tmp_path: Path, signer: Signer
) -> None:
    keys = UserKeys(tmp_path)
    token = signer.token()
    keys.verify(token)
    newer = Signer(tmp_path, "user-2")
    assert keys.verify(newer.token()).name == "ada"
    (tmp_path / "user-1.pub.pem").unlink()
    with pytest.raises(Unauthenticated):
        keys.verify(token)
