"""Capability tokens are minted, verified once, and refused when their key is removed."""

import time
from pathlib import Path
from uuid import UUID, uuid4

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trace_etl.dispatcher.task_api.permissions import DatasetGrant, Permissions, TokenScope
from trace_etl.dispatcher.task_api.tokens import PemSigner, TaskTokens
from trace_etl.lite.credentials import keys
from trace_etl.model.errors import Forbidden, Unauthenticated
from trace_etl.model.storage import attempt_prefix
from trace_etl.model.task import Fence


class CountingSigner(PemSigner):
    """Counts key lookups: one for each token whose signature is verified."""

    lookups = 0

    def public_key(self, kid: str) -> ec.EllipticCurvePublicKey | None:
        self.lookups += 1
        return super().public_key(kid)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    keys.ensure_task_key(tmp_path)
    return tmp_path


def grant(prefix: str) -> DatasetGrant:
    ref = {"scheme": "file", "bucket": "trace", "prefix": prefix, "glob": "*.parquet"}
    return DatasetGrant(uuid4(), uuid4(), ref)


def scope(task_id: UUID | None = None, attempt: int = 1) -> TokenScope:
    task_id = task_id or uuid4()
    prefix = attempt_prefix("", task_id, attempt)
    return TokenScope(
        uuid4(), task_id, attempt, prefix, Permissions([grant("in/")], [grant("out/")]), {}
    )


def test_a_minted_token_verifies_on_every_replica(directory: Path) -> None:
    mine, other = TaskTokens(PemSigner(directory)), TaskTokens(PemSigner(directory))
    permissions = scope()
    token = mine.mint(permissions, 60)
    here, there = mine.verify(token), other.verify(token)
    assert here == there
    assert (here.task_id, here.attempt, here.org_id) == (permissions.task_id, 1, permissions.org_id)
    (output,) = here.outputs.values()
    assert output.url == f"s3://trace/out/{permissions.task_id}/1/"
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["s3"] == {"read_prefixes": ["s3://trace/in/"], "write_prefixes": [output.url]}


def test_a_token_is_verified_once_instead_of_on_every_call(directory: Path) -> None:
    token = TaskTokens(PemSigner(directory)).mint(scope(), 60)
    signer = CountingSigner(directory)
    elsewhere = TaskTokens(signer)
    for _ in range(5):
        elsewhere.verify(token)
    assert signer.lookups == 1


def test_a_verified_token_still_expires(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TaskTokens(PemSigner(directory))
    token = tokens.mint(scope(), 60)
    tokens.verify(token)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.verify(token)


def test_an_invalid_token_is_not_cached_as_valid(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    token = tokens.mint(scope(), 60)
    flipped = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            tokens.verify(flipped)


def test_the_token_cache_is_bounded_and_an_evicted_token_is_verified_again(directory: Path) -> None:
    signer = CountingSigner(directory)
    tokens = TaskTokens(signer, cache_size=2)
    first, *others = [tokens.mint(scope(), 60) for _ in range(3)]
    for token in others:
        tokens.verify(token)
    assert signer.lookups == 0
    tokens.verify(first)
    assert signer.lookups == 1


def test_a_new_key_signs_immediately_and_the_old_one_still_verifies(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    old = tokens.mint(scope(), 60)
    rotation = keys.rotate_task_key(directory)
    new = tokens.mint(scope(), 60)
    assert jwt.get_unverified_header(new)["kid"] == rotation.signs
    assert jwt.get_unverified_header(old)["kid"] in rotation.verify
    tokens.verify(old)
    tokens.verify(new)


def test_tokens_of_a_removed_key_are_refused_even_if_verified_before(
    directory: Path,
) -> None:
    tokens = TaskTokens(PemSigner(directory))
    old = tokens.mint(scope(), 60)
    tokens.verify(old)
    keys.rotate_task_key(directory)
    (directory / f"{jwt.get_unverified_header(old)['kid']}.pem").unlink()
    with pytest.raises(Unauthenticated):
        tokens.verify(old)


def test_clocks_of_replicas_may_differ_a_little(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 20)
    token = TaskTokens(PemSigner(directory)).mint(scope(), 60)
    monkeypatch.undo()
    assert TaskTokens(PemSigner(directory)).verify(token)


def test_a_renewed_token_has_the_same_scope_and_a_new_expiry(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    old = tokens.mint(scope(), 900)
    new = tokens.renew(old)
    assert new != old
    before, after = tokens.verify(old), tokens.verify(new)
    assert (after.task_id, after.outputs) == (before.task_id, before.outputs)
    assert after.expires_at - after.issued_at == 900


def test_a_token_is_due_for_renewal_after_two_thirds_of_its_lifetime(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    mine = tokens.verify(tokens.mint(scope(), 900))
    assert not mine.is_nearly_expired(mine.issued_at + 600)
    assert mine.is_nearly_expired(mine.issued_at + 601)


def test_a_capability_is_valid_only_for_its_attempt(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    task_id = uuid4()
    mine = tokens.verify(tokens.mint(scope(task_id, 2), 60))
    mine.require(Fence(task_id, 2, uuid4()))
    for other in (Fence(task_id, 1, uuid4()), Fence(uuid4(), 2, uuid4())):
        with pytest.raises(Forbidden):
            mine.require(other)


def test_the_published_keys_are_public_keys(directory: Path) -> None:
    signer = PemSigner(directory)
    token = TaskTokens(signer).mint(scope(), 60)
    published = jwt.PyJWKSet.from_dict(signer.jwks())
    key = published[jwt.get_unverified_header(token)["kid"]]
    assert jwt.decode(token, key, algorithms=["ES256"], audience="trace.task")
    assert "d" not in signer.jwks()["keys"][0]


def test_a_key_of_another_curve_is_refused(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (directory / "task-9.pem").write_bytes(pem)
    with pytest.raises(ValueError, match="P-256"):
        PemSigner(directory)


def test_a_directory_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no signing key"):
        PemSigner(tmp_path)
