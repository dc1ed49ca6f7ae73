"""Bundles of user-defined functions: uploads in parts, finished bundles, and their use in DAGs."""

from uuid import UUID

from trace_etl.api.user.udf import BundleItem
from trace_etl.dag.positions import locate
from trace_etl.model.dag import Dag
from trace_etl.model.errors import Invalid, NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all, fetch_one

_DELETE_OLD_UPLOADS = "DELETE FROM udf_uploads WHERE started_at < now() - interval '1 day'"
# A user who starts over leaves nothing behind.
_DELETE_REPLACED = """
DELETE FROM udf_uploads WHERE org_id = %(org_id)s AND pushed_by = %(user)s AND name = %(name)s
"""
_START = """
INSERT INTO udf_uploads (org_id, name, sha256, size_bytes, pushed_by)
VALUES (%(org_id)s, %(name)s, %(sha256)s, %(size)s, %(user)s)
RETURNING upload_id
"""


async def start_upload(
    conn: Conn, org_id: UUID, *, user: str, name: str, sha256: str, size: int
) -> UUID:
    """Start an upload and return its id. Ends the user's earlier upload of this name."""
    values = {"org_id": org_id, "user": user, "name": name, "sha256": sha256, "size": size}
    await conn.execute(_DELETE_OLD_UPLOADS)
    await conn.execute(_DELETE_REPLACED, values)
    row = await (await conn.execute(_START, values)).fetchone()
    assert row is not None
    return row[0]


class Upload:
    """An unfinished upload, as its row stores it."""

    def __init__(self, upload_id: UUID, name: str, sha256: str, size_bytes: int) -> None:
        self.upload_id = upload_id
        self.name = name
        self.sha256 = sha256
        self.size_bytes = size_bytes


_FIND = """
SELECT upload_id, name, sha256, size_bytes FROM udf_uploads
 WHERE upload_id = %(upload_id)s AND org_id = %(org_id)s AND pushed_by = %(user)s
   FOR UPDATE
"""


async def lock_upload(conn: Conn, org_id: UUID, user: str, upload_id: UUID) -> Upload:
    """Return the user's own upload. Raises NotFound."""
    values = {"org_id": org_id, "user": user, "upload_id": upload_id}
    found = await fetch_one(conn, Upload, _FIND, values)
    if found is None:
        raise NotFound(f"no upload {upload_id} of yours; start a new one")
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
    rows = await (await conn.execute(_PARTS, {"upload_id": upload_id})).fetchall()
    return b"".join(row[0] for row in rows)


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


_LIST = """
SELECT name, sha256, size_bytes, file_count, pushed_by, pushed_at FROM udf_bundles
 WHERE org_id = %(org_id)s AND (%(name)s::text IS NULL OR name = %(name)s)
   AND (%(before)s::timestamptz IS NULL OR pushed_at < %(before)s
        OR pushed_at = %(before)s AND sha256 < %(before_id)s)
 ORDER BY pushed_at DESC, sha256 DESC LIMIT %(limit)s
"""


async def list_bundles(
    conn: Conn, org_id: UUID, *, name: str | None, after: tuple[object, str] | None, limit: int
) -> list[BundleItem]:
    """List one page of an organisation's bundles, newest first."""
    moment, sha256 = after or (None, None)
    values = {
        "org_id": org_id,
        "name": name,
        "before": moment,
        "before_id": sha256,
        "limit": limit,
    }
    return await fetch_all(conn, BundleItem, _LIST, values)


_FIND_BUNDLES = """
SELECT name, sha256 FROM udf_bundles WHERE org_id = %(org_id)s AND name = ANY(%(names)s)
 ORDER BY pushed_at
"""


async def require_bundles(conn: Conn, org_id: UUID, dag: Dag, text: str) -> None:
    """Check that every bundle of a DAG was pushed. Raises Invalid."""
    used = {n: job.udf for n, job in enumerate(dag.jobs) if job.udf is not None}
    if not used:
        return
    names = [udf.bundle for udf in used.values()]
    query = await conn.execute(_FIND_BUNDLES, {"org_id": org_id, "names": names})
    pushed: dict[str, list[str]] = {}
    for name, sha256 in await query.fetchall():
        pushed.setdefault(name, []).append(sha256)
    located = locate(text)
    faults = [
        located.fault(("jobs", n, "udf", "sha256"), _explain_missing(udf.bundle, pushed))
        for n, udf in used.items()
        if udf.sha256 not in pushed.get(udf.bundle, ())
    ]
    if faults:
        raise Invalid(faults)


def _explain_missing(bundle: str, pushed: dict[str, list[str]]) -> str:
    if not (known := pushed.get(bundle)):
        return f"no bundle {bundle!r} was pushed; run `trace udf push DIRECTORY --name {bundle}`"
    return f"bundle {bundle!r} was not pushed with this hash; the newest one is {known[-1]}"
