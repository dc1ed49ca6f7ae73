"""Bundles of user-defined functions, and their use in DAGs."""

from uuid import UUID

from trace_etl.api.user.dags.udf import BundleItem
from trace_etl.dag.positions import locate
from trace_etl.model.dag import Dag
from trace_etl.model.errors import Invalid
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

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
