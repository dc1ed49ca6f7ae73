"""The manifest of a dataset: the certificates of its partitions, signed as one document."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from trace_etl.api.body import Reply
from trace_etl.api.proof.certificates import Certificate

MANIFEST_TYPE = "trace-manifest+jws"
"""The `typ` of the signed document, so that no other token of the same key passes for one."""


class Manifest(Reply):
    """The payload of a signed manifest."""

    format: Literal["trace.manifest.v1"] = "trace.manifest.v1"
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    issued_at: datetime
    range: str | None
    """The blocks that were asked for. Null: the whole dataset."""
    gaps: list[tuple[int, int]]
    """Blocks without a partition between the first and the last."""
    partitions: list[Certificate]


class SignedManifest(Reply):
    """A manifest as a compact JWS (ES256)."""

    jws: str
    kid: str
    partitions: int
