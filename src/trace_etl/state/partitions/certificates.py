"""Read the certificates of committed partitions."""

from typing import Any
from uuid import UUID

from trace_etl.api.proof.certificates import StoredCertificate
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

_PAGE = """
SELECT partition_key, start, "end", row_count, byte_count, columns, content_hash, row_sum, files,
       verified, inputs, definition, task_id, attempt, committed_at, storage_ref
  FROM partition_certificates
 WHERE dataset_version = %(dataset_version)s
   AND (coalesce(start, -1), partition_key) > (%(after_start)s, %(after_key)s)
   AND (%(first)s::bigint IS NULL OR (start <= %(last)s AND "end" >= %(first)s))
 ORDER BY coalesce(start, -1), partition_key LIMIT %(limit)s
"""


async def list_certificates(
    conn: Conn,
    dataset_version: UUID,
    *,
    blocks: Range | None,
    after: tuple[Any, ...] | None,
    limit: int,
) -> list[StoredCertificate]:
    """List one page of the certificates of a generation, by first block."""
    start, key = after or (-2, "")
    values = {
        "dataset_version": dataset_version,
        "after_start": start,
        "after_key": key,
        "first": blocks.start if blocks else None,
        "last": blocks.end if blocks else None,
        "limit": limit,
    }
    return await fetch_all(conn, StoredCertificate, _PAGE, values)
