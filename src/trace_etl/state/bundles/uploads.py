"""Uploads of bundles in parts. An upload ends when it is finished, replaced or a day old.

An upload that ended without a bundle may have left an object. Its row stays until the storage sweeper
has deleted the object.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

from trace_etl.api.user.dags.udf import BundleItem
from trace_etl.model.errors import NotFound, TooManyRequests, Unavailable
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one

MAX_OPEN = 8
"""Unfinished uploads per user. Their parts are in Postgres, up to 50 MiB each."""
# Starting an upload and taking ended ones exclude each other, so that no object is deleted that a new
# upload of the same content relies on.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.udf_uploads', 0))"
_END_REPLACED = """
UPDATE udf_uploads SET ended_at = now()
 WHERE org_id = %(org_id)s AND pushed_by = %(user)s AND name = %(name)s AND ended_at IS NULL
"""
_END_EXPIRED = """
UPDATE udf_uploads SET ended_at = now()
 WHERE ended_at IS NULL AND started_at < now() - interval '1 day'
"""
_DELETE_PARTS = """
DELETE FROM udf_upload_parts p USING udf_uploads u
 WHERE u.upload_id = p.upload_id AND u.ended_at IS NOT NULL
"""
_COUNT_OPEN = """
SELECT count(*) FROM udf_uploads
 WHERE org_id = %(org_id)s AND pushed_by = %(user)s AND ended_at IS NULL
"""
_IS_BEING_SWEPT = """
SELECT EXISTS (SELECT FROM udf_uploads
                WHERE org_id = %(org_id)s AND sha256 = %(sha256)s AND swept_at IS NOT NULL)
"""
_START = """
INSERT INTO udf_uploads (org_id, name, sha256, size_bytes, pushed_by)
VALUES (%(org_id)s, %(name)s, %(sha256)s, %(size)s, %(user)s)
RETURNING upload_id
"""


async def start_upload(
    conn: Conn, org_id: UUID, *, user: str, name: str, sha256: str, size: int
) -> UUID:
    """Start an upload and return its id. Ends the user's earlier upload of this name.

    Raises TooManyRequests, or Unavailable while an object with this content is being deleted.
    """
    values = {"org_id": org_id, "user": user, "name": name, "sha256": sha256, "size": size}
    await conn.execute(_LOCK)
    await _end(conn, org_id, user, name)
    if await _fetch_value(conn, _COUNT_OPEN, values) >= MAX_OPEN:
        raise TooManyRequests(
            f"you have {MAX_OPEN} unfinished uploads, the maximum for one user; finish one, or start"
            " one of the same name again to replace it"
        )
    if await _fetch_value(conn, _IS_BEING_SWEPT, values):
        raise Unavailable(
            "the object of an earlier upload of this content is being deleted; try again"
        )
    return await _fetch_value(conn, _START, values)


async def _end(conn: Conn, org_id: UUID, user: str, name: str) -> None:
    await conn.execute(_END_REPLACED, {"org_id": org_id, "user": user, "name": name})
    await conn.execute(_END_EXPIRED)
    await conn.execute(_DELETE_PARTS)


async def _fetch_value(conn: Conn, query: LiteralString, values: dict[str, Any]) -> Any:
    row = await (await conn.execute(query, values)).fetchone()
    assert row is not None
    return row[0]


@dataclass(frozen=True)
class Upload:
    """An unfinished upload, as its row stores it."""

    upload_id: UUID
    name: str
    sha256: str
    size_bytes: int


_FIND = """
SELECT upload_id, name, sha256, size_bytes FROM udf_uploads
 WHERE upload_id = %(upload_id)s AND org_id = %(org_id)s AND pushed_by = %(user)s AND ended_at IS NULL
   FOR UPDATE
"""


async def lock_upload(conn: Conn, org_id: UUID, user: str, upload_id: UUID) -> Upload:
    """Return the user's own upload. Raises NotFound."""
    values = {"org_id": org_id, "user": user, "upload_id": upload_id}
    found = await fetch_one(conn, Upload, _FIND, values)
    if found is None:
        raise NotFound(f"you have no upload {upload_id}; start a new one")
    return found


_PUT_PART = """
INSERT INTO udf_upload_parts (upload_id, part_number, content)
VALUES (%(upload_id)s, %(number)s, %(content)s)
ON CONFLICT (upload_id, part_number) DO UPDATE SET content = EXCLUDED.content
"""


async def put_part(conn: Conn, upload_id: UUID, number: int, content: bytes) -> None:
    """Store a part. Sending it again replaces it."""
    values = {"upload_id": upload_id, "number": number, "content": content}
    await conn.execute(_PUT_PART, values)


_PARTS = """
SELECT content FROM udf_upload_parts WHERE upload_id = %(upload_id)s ORDER BY part_number
"""


async def read_parts(conn: Conn, upload_id: UUID) -> bytes:
    """Return the parts of an upload, joined in their order."""
    parts = await conn.execute(_PARTS, {"upload_id": upload_id}, binary=True)
    return b"".join([row[0] for row in await parts.fetchall()])


_FINISH = """
INSERT INTO udf_bundles (org_id, name, sha256, size_bytes, file_count, pushed_by)
VALUES (%(org_id)s, %(name)s, %(sha256)s, %(size)s, %(files)s, %(user)s)
ON CONFLICT (org_id, name, sha256) DO UPDATE SET sha256 = EXCLUDED.sha256
RETURNING name, sha256, size_bytes, file_count, pushed_by, pushed_at
"""
_DELETE_UPLOAD = "DELETE FROM udf_uploads WHERE upload_id = %(upload_id)s"


async def finish_upload(
    conn: Conn, org_id: UUID, user: str, upload: Upload, files: int
) -> BundleItem:
    """Record the bundle and delete its upload. A bundle that exists already stays as it is."""
    values = {
        "org_id": org_id,
        "name": upload.name,
        "sha256": upload.sha256,
        "size": upload.size_bytes,
        "files": files,
        "user": user,
    }
    bundle = await fetch_one(conn, BundleItem, _FINISH, values)
    assert bundle is not None
    await conn.execute(_DELETE_UPLOAD, {"upload_id": upload.upload_id})
    return bundle


@dataclass(frozen=True)
class EndedUpload:
    """An upload whose object, if nothing uses it, is to be deleted."""

    upload_id: UUID
    org_id: UUID
    sha256: str
    size_bytes: int
    is_used: bool
    """Whether a bundle or another upload has the same content."""


# An upload can be replaced while it is finished. An hour later, its object is certainly stored.
_TAKE = """
UPDATE udf_uploads u SET swept_at = now()
 WHERE u.upload_id IN (
       SELECT upload_id FROM udf_uploads
        WHERE ended_at < now() - interval '1 hour'
          AND (swept_at IS NULL OR swept_at < now() - %(hold)s)
        ORDER BY ended_at LIMIT %(limit)s)
RETURNING u.upload_id, u.org_id, u.sha256, u.size_bytes,
          EXISTS (SELECT FROM udf_bundles b WHERE b.org_id = u.org_id AND b.sha256 = u.sha256)
          OR EXISTS (SELECT FROM udf_uploads o WHERE o.org_id = u.org_id AND o.sha256 = u.sha256
                        AND o.ended_at IS NULL) AS is_used
"""


async def take_ended(conn: Conn, *, hold: timedelta, limit: int) -> list[EndedUpload]:
    """End expired uploads, and take those whose objects can be deleted."""
    await conn.execute(_LOCK)
    await conn.execute(_END_EXPIRED)
    await conn.execute(_DELETE_PARTS)
    return await fetch_all(conn, EndedUpload, _TAKE, {"hold": hold, "limit": limit})


_FORGET = "DELETE FROM udf_uploads WHERE upload_id = ANY(%s)"


async def forget(conn: Conn, upload_ids: list[UUID]) -> None:
    """Delete the rows of uploads whose objects were deleted."""
    await conn.execute(_FORGET, (upload_ids,))
