"""The lock that a backup holds: while it does, no object is deleted."""

from trace_etl.state.db.pool import Conn

# `lite/backup/contents.py` takes the same lock exclusively. What a sweep has already taken is referred to by
# no partition, so a snapshot that is made later does not need it.
_MAY_SWEEP = "SELECT pg_try_advisory_xact_lock_shared(hashtextextended('trace.storage_sweep', 0))"


async def may_sweep(conn: Conn) -> bool:
    """Return whether objects may be deleted. The answer holds until the transaction ends."""
    row = await (await conn.execute(_MAY_SWEEP)).fetchone()
    return bool(row and row[0])
