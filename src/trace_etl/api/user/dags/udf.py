"""Bundles of user-defined functions, and their upload in parts."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints

from trace_etl.api.body import DatasetName, ListReply, Reply, UserRequest
from trace_etl.model.bundles import MAX_ZIP_BYTES

PART_BYTES = 1024 * 1024
MAX_PARTS = MAX_ZIP_BYTES // PART_BYTES + 1
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class UploadRequest(UserRequest):
    name: DatasetName
    """The name that DAG files use for the bundle."""
    sha256: Sha256
    size_bytes: Annotated[int, Field(ge=1, le=MAX_ZIP_BYTES)]


class UploadReply(Reply):
    upload_id: UUID
    part_bytes: int = PART_BYTES
    """The size of every part but the last."""


class BundleItem(Reply):
    """A bundle of a user-defined function."""

    name: str
    sha256: str
    size_bytes: int
    file_count: int
    pushed_by: str
    pushed_at: datetime


class BundleList(ListReply[BundleItem]):
    """One page of bundles, newest first."""
