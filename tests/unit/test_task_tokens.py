"""Capability tokens are minted, verified once, and refused when their key is removed."""

import json
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.waiting import eventually
from trace_etl.api.task.capability import ReadGrant, Reads, parse_read_grants
from trace_etl.dispatcher.task_api.authorization.permissions import (
    AttemptPrefixes,
    DatasetGrant,
    Permissions,
    TokenScope,
)
from trace_etl.dispatcher.task_api.authorization.tokens import PemSigner, TaskTokens
from trace_etl.lite.credentials import keys
from trace_etl.model.errors import Forbidden, Unauthenticated
from trace_etl.model.storage import attempt_prefix, table_ref
from trace_etl.model.task import Fence
from trace_etl.state.tasks.read_grants import digest_of


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


IN, OUT = "cold/datasets/in/", "cold/datasets/out/"
PREFIXES = AttemptPrefixes("s3://trace/scratch/org/", "s3://trace/exports/org/")


def object_ref(prefix: str) -> dict[str, str]:
    return {"scheme": "file", "bucket": "trace", "prefix": prefix, "glob": "*.parquet"}


def read(partitions: int = 1, where: dict[str, Any] | None = None) -> ReadGrant:
    prefixes = tuple(f"s3://trace/{IN}{uuid4()}/1/" for _ in range(partitions))
    return ReadGrant(uuid4(), uuid4(), object_ref(IN), "blocks", "eth_blocks", where, prefixes)


def permissions_of(*reads: ReadGrant) -> Permissions:
    outputs = [
        DatasetGrant(uuid4(), uuid4(), object_ref(OUT), "out"),
        DatasetGrant(uuid4(), uuid4(), table_ref("dataset_hot"), "hot"),
    ]
    return Permissions([*reads], outputs, PREFIXES)


def scope(
    task_id: UUID | None = None, attempt: int = 1, permissions: Permissions | None = None
) -> TokenScope:
    task_id = task_id or uuid4()
    prefix = attempt_prefix("", task_id, attempt)
    return TokenScope(uuid4(), task_id, attempt, prefix, permissions or permissions_of(read()), {})


def test_a_minted_token_verifies_on_every_replica(directory: Path) -> None:
    mine, other = TaskTokens(PemSigner(directory)), TaskTokens(PemSigner(directory))
    permissions = scope()
    token = mine.mint(permissions, 60)
    here, there = mine.verify(token), other.verify(token)
    assert here == there
    assert (here.task_id, here.attempt, here.org_id) == (permissions.task_id, 1, permissions.org_id)
    output, hot = here.outputs.values()
    assert output.url == f"s3://trace/{OUT}{permissions.task_id}/1/"
    assert (hot.output, hot.storage_ref) == ("hot", table_ref("dataset_hot"))
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["s3"] == {
        "read_prefixes": list(here.reads.prefixes),
        "write_prefixes": [output.url],
        "scratch_prefix": f"s3://trace/scratch/org/{permissions.task_id}/1/",
        "export_prefix": f"s3://trace/exports/org/{permissions.task_id}/1/",
    }


def test_a_token_lists_each_input_with_its_own_partitions(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    reads = (read(2, {"number": [2**70, 1], "text": "a"}), read(0), read(1))
    token = tokens.mint(scope(permissions=permissions_of(*reads)), 60)
    assert TaskTokens(PemSigner(directory)).verify(token).reads.datasets == reads
    claims = jwt.decode(token, options={"verify_signature": False})
    changes: list[list[Any]] = [[], claims["s3"]["read_prefixes"] * 2, [1, 2, 3]]
    for change in changes:
        with pytest.raises((ValueError, TypeError)):
            parse_read_grants(claims["datasets"], change)


@pytest.mark.parametrize(
    "reads",
    [
        [read(5000), read(5000)],
        [read(1, {"address": [f"0x{n:040x}" for n in range(1000)]})],
        [read(10) for _ in range(200)],
    ],
    ids=["partitions", "filter", "inputs"],
)
def test_long_inputs_are_named_by_digest_and_the_token_fits_a_header(
    directory: Path, reads: list[ReadGrant]
) -> None:
    permissions = permissions_of(*reads)
    token = TaskTokens(PemSigner(directory)).mint(scope(permissions=permissions), 60)
    assert len(token) < 8192
    document = permissions.document or b""
    capability = TaskTokens(PemSigner(directory)).verify(token)
    assert capability.reads == Reads((), digest_of(document))
    assert len(capability.outputs) == 2
    recorded = json.loads(document)
    assert parse_read_grants(recorded["datasets"], recorded["read_prefixes"]) == tuple(reads)


def test_a_token_of_an_older_release_still_verifies_but_grants_no_inputs(directory: Path) -> None:
    tokens = TaskTokens(PemSigner(directory))
    token = tokens.mint(scope(), 60)
    claims = jwt.decode(token, options={"verify_signature": False})
    del claims["s3"]["scratch_prefix"], claims["s3"]["export_prefix"]
    for entry in claims["datasets"]:
        for field in ("input", "output", "partitions", "name"):
            entry.pop(field, None)
    kid = tokens.kid()
    key = (directory / f"{kid}.pem").read_text()
    older = jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid})
    capability = tokens.verify(older)
    assert (capability.reads, capability.prefixes) == (Reads(()), None)
    assert [grant.prefix.startswith(OUT) for grant in capability.outputs.values()] == [True]


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
    eventually(lambda: tokens.kid() == rotation.signs, "the signer looks at its directory again")
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
