"""Merge the totals of generations.

Triggers record the difference that each change of partitions makes. The totals of a generation are the
sum of its rows.
"""

from trace_etl.state.db.pool import Conn

# A generation whose partitions are gone keeps no row.
_MERGE = """
WITH chosen AS (
    SELECT dataset_version FROM generation_totals
     GROUP BY dataset_version HAVING count(*) > 1 ORDER BY count(*) DESC LIMIT %(limit)s
), taken AS (
    DELETE FROM generation_totals t WHERE ctid = ANY (ARRAY(
        SELECT g.ctid FROM generation_totals g JOIN chosen USING (dataset_version)
         ORDER BY g.dataset_version FOR UPDATE OF g SKIP LOCKED))
    RETURNING t.*
), merged AS (
    SELECT dataset_version, sum(partitions) AS partitions, sum(row_count) AS row_count,
           sum(byte_count) AS byte_count, sum(blocks) AS blocks
      FROM taken GROUP BY dataset_version
)
INSERT INTO generation_totals (dataset_version, partitions, row_count, byte_count, blocks)
SELECT * FROM merged WHERE (partitions, row_count, byte_count, blocks) <> (0, 0, 0, 0)
"""


async def merge_totals(conn: Conn, *, limit: int) -> None:
    """Merge the rows of up to `limit` generations, those with the most rows first."""
    await conn.execute(_MERGE, {"limit": limit})
