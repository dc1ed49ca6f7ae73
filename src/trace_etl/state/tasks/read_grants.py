"""Inputs of tasks that are too long for a capability token, recorded by their digest."""

import hashlib
import json
from datetime import timedelta

from trace_etl.api.task.capability import Reads, parse_read_grants
from trace_etl.model.errors import Forbidden
from trace_etl.state.db.pool import Conn

_RECORD = """
INSERT INTO read_grants (sha256, document)
SELECT * FROM unnest(%(digests)s::text[], %(documents)s::text[])
ON CONFLICT (sha256) DO UPDATE SET used_at = now()
"""


def digest_of(document: bytes) -> str:
    """Return the digest that a token carries for a document."""
    return hashlib.sha256(document).hexdigest()


async def record(conn: Conn, documents: dict[str, bytes]) -> None:
    """Record documents by their digests, before the tokens that carry the digests are handed out."""
    digests = sorted(documents)  # one order for all, so that two calls cannot deadlock
    texts = [documents[digest].decode() for digest in digests]
    await conn.execute(_RECORD, {"digests": digests, "documents": texts})


_GET = "SELECT document FROM read_grants WHERE sha256 = %(sha256)s"


async def resolve(conn: Conn, reads: Reads) -> Reads:
    """Return the inputs that a token grants, with those it names by digest. Raises Forbidden."""
    if reads.sha256 is None:
        return reads
    row = await (await conn.execute(_GET, {"sha256": reads.sha256})).fetchone()
    if row is None or digest_of(row[0].encode()) != reads.sha256:
        raise Forbidden("the recorded inputs of this attempt have expired; run the task again")
    document = json.loads(row[0])
    return Reads(parse_read_grants(document["datasets"], document["read_prefixes"]))


# The longest-lived token must not outlive the document that it refers to.
_DELETE_UNUSED = """
DELETE FROM read_grants WHERE sha256 IN (
    SELECT sha256 FROM read_grants
     WHERE used_at < now() - greatest(%(older_than)s, interval '2 days')
     ORDER BY used_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""


async def delete_unused(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete documents that no claim has used for `older_than`."""
    return (await conn.execute(_DELETE_UNUSED, {"older_than": older_than, "limit": limit})).rowcount
