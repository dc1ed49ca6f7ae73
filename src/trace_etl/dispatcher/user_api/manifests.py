"""Sign manifests with the certificate key of the stack."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime

import orjson

from trace_etl.api.proof.certificates import Certificate, StoredCertificate
from trace_etl.api.proof.manifest import MANIFEST_TYPE, Manifest, SignedManifest
from trace_etl.api.user.data.datasets import DatasetItem
from trace_etl.dispatcher.task_api.authorization.tokens import Signer
from trace_etl.model.errors import Unavailable
from trace_etl.model.scope import Range

MAX_PARTITIONS = 100_000
_FIELDS = set(Certificate.model_fields)


def require_signer(signer: Signer | None) -> Signer:
    """Return the signer. Raises Unavailable if the Dispatcher has no certificate key."""
    if signer is None:
        raise Unavailable(
            "this Dispatcher has no key for manifests; set TRACE_CERTIFICATE_KEYS_DIR"
        )
    return signer


def sign_manifest(
    signer: Signer,
    dataset: DatasetItem,
    blocks: Range | None,
    gaps: list[tuple[int, int]],
    certificates: Sequence[StoredCertificate],
) -> SignedManifest:
    """Build and sign the manifest of some partitions. Slow for many: call it in a thread."""
    manifest = Manifest(
        dataset=dataset.name or "",
        dataset_uuid=dataset.dataset_uuid,
        dataset_version=dataset.dataset_version,
        issued_at=datetime.now(UTC),
        range=blocks.key if blocks else None,
        gaps=gaps,
        partitions=[
            Certificate.model_validate(c.model_dump(include=_FIELDS)) for c in certificates
        ],
    )
    kid = signer.kid()
    header = orjson.dumps({"alg": "ES256", "kid": kid, "typ": MANIFEST_TYPE})
    message = b".".join(map(_encode, (header, manifest.model_dump_json().encode())))
    jws = b".".join((message, _encode(signer.sign(kid, message))))
    return SignedManifest(jws=jws.decode(), kid=kid, partitions=len(certificates))


def _encode(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")
