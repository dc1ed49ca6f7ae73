"""Find ids by their beginning."""

from typing import LiteralString
from uuid import UUID

from trace_etl.api.user.ids import IdKind
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn

MAX_MATCHES = 5
_DIGITS = 32
_FIND: dict[IdKind, LiteralString] = {
    "task": """
SELECT task_id FROM tasks
 WHERE org_id = %(org_id)s AND task_id BETWEEN %(first)s AND %(last)s
 ORDER BY task_id LIMIT %(limit)s
""",
    "backfill": """
SELECT backfill_id FROM backfills
 WHERE org_id = %(org_id)s AND backfill_id BETWEEN %(first)s AND %(last)s
 ORDER BY backfill_id LIMIT %(limit)s
""",
    "version": """
SELECT v.dag_version FROM dag_versions v JOIN dags g USING (dag_id)
 WHERE g.org_id = %(org_id)s AND v.dag_version BETWEEN %(first)s AND %(last)s
 ORDER BY v.dag_version LIMIT %(limit)s
""",
    "batch": """
SELECT publish_id FROM buffer_publishes
 WHERE org_id = %(org_id)s AND publish_id BETWEEN %(first)s AND %(last)s
 ORDER BY publish_id LIMIT %(limit)s
""",
}


async def find_ids(conn: Conn, org_id: UUID, kind: IdKind, prefix: str) -> list[UUID]:
    """List ids of an organisation by their first hexadecimal digits, MAX_MATCHES at most. Raises NotFound."""
    digits = prefix.replace("-", "")[:_DIGITS]
    values = {
        "org_id": org_id,
        "first": UUID(digits.ljust(_DIGITS, "0")),
        "last": UUID(digits.ljust(_DIGITS, "f")),
        "limit": MAX_MATCHES,
    }
    found = [row[0] for row in await (await conn.execute(_FIND[kind], values)).fetchall()]
    if not found:
        raise NotFound(f"no {kind} begins with {prefix!r}; give its id, or the beginning of it")
    return found
