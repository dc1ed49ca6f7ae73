"""Pause and resume jobs for users, and list all pauses."""

from typing import LiteralString
from uuid import UUID

from trace_etl.api.user.tasks.pressure import PauseItem
from trace_etl.model.dag import Priority
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import JobNameFilter, fetch_all
from trace_etl.state.flow import pressure

_FIND_JOBS = """
SELECT j.job_id, j.name FROM jobs j JOIN dags g USING (dag_id)
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND j.active
   AND (%(job)s::text IS NULL OR j.name = %(job)s)
 ORDER BY j.name
"""
# A removed job keeps its pause, and with it the events that wait, until a user ends it.
_FIND_PAUSED_JOBS = """
SELECT j.job_id, j.name FROM jobs j JOIN dags g USING (dag_id)
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s
   AND (j.active OR EXISTS (SELECT FROM pauses p WHERE p.job_id = j.job_id))
   AND (%(job)s::text IS NULL OR j.name = %(job)s)
 ORDER BY j.name
"""
_PAUSE = """
INSERT INTO pauses (job_id, by_name, tier, reason)
SELECT unnest(%(job_ids)s::uuid[]), %(by)s, %(tier)s, %(reason)s
ON CONFLICT ON CONSTRAINT pauses_once DO UPDATE
   SET by_name = EXCLUDED.by_name, tier = EXCLUDED.tier, reason = EXCLUDED.reason,
       since = CASE pauses.tier WHEN EXCLUDED.tier THEN pauses.since ELSE now() END
"""
_PAUSE_DAG = """
INSERT INTO dag_pauses (dag_id, by_name, tier, reason)
SELECT dag_id, %(by)s, %(tier)s, %(reason)s FROM dags
 WHERE org_id = %(org_id)s AND name = %(dag)s
ON CONFLICT (dag_id) DO UPDATE
   SET by_name = EXCLUDED.by_name, tier = EXCLUDED.tier, reason = EXCLUDED.reason
"""
_RESUME_DAG = """
DELETE FROM dag_pauses p USING dags g
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND p.dag_id = g.dag_id
"""
_PAUSE_ADDED = """
INSERT INTO pauses (job_id, by_name, tier, reason)
SELECT j.job_id, p.by_name, p.tier, p.reason
  FROM dag_pauses p CROSS JOIN unnest(%(job_ids)s::uuid[]) AS j (job_id)
 WHERE p.dag_id = %(dag_id)s
ON CONFLICT ON CONSTRAINT pauses_once DO NOTHING
"""
_IS_DAG_PAUSED = "SELECT EXISTS (SELECT FROM dag_pauses WHERE dag_id = %(dag_id)s)"
_RESUME = """
DELETE FROM pauses WHERE job_id = ANY(%(job_ids)s) AND by_job_id IS NULL RETURNING job_id
"""


async def pause(
    conn: Conn, org_id: UUID, dag: str, job: str | None, *, by: str, reason: str, tier: Priority
) -> list[str]:
    """Pause a job, or every job of a DAG, until a user resumes it. Raises NotFound."""
    await pressure.lock(conn)
    names = await _find_jobs(conn, _FIND_JOBS, org_id, dag, job)
    job_ids = list(names)
    values = {"job_ids": job_ids, "by": by, "reason": reason, "tier": tier}
    await conn.execute(_PAUSE, values)
    if job is None:
        await conn.execute(_PAUSE_DAG, {**values, "org_id": org_id, "dag": dag})
    await pressure.apply_pauses(conn, job_ids)
    return list(names.values())


async def resume(conn: Conn, org_id: UUID, dag: str, job: str | None) -> list[str]:
    """Delete users' pauses of a job or a DAG. Returns the names of the jobs. Raises NotFound."""
    await pressure.lock(conn)
    names = await _find_jobs(conn, _FIND_PAUSED_JOBS, org_id, dag, job)
    cursor = await conn.execute(_RESUME, {"job_ids": list(names)})
    resumed = [row[0] for row in await cursor.fetchall()]
    if job is None:
        await conn.execute(_RESUME_DAG, {"org_id": org_id, "dag": dag})
    await pressure.apply_pauses(conn, resumed)
    return sorted(names[job_id] for job_id in resumed)


async def pause_added_jobs(conn: Conn, dag_id: UUID, job_ids: list[UUID]) -> None:
    """Pause jobs that a deploy adds to a DAG, if a user paused the whole DAG."""
    row = await (await conn.execute(_IS_DAG_PAUSED, {"dag_id": dag_id})).fetchone()
    if not job_ids or not (row and row[0]):
        return
    await pressure.lock(conn)
    await conn.execute(_PAUSE_ADDED, {"dag_id": dag_id, "job_ids": job_ids})
    await pressure.apply_pauses(conn, job_ids)


async def _find_jobs(
    conn: Conn, query: LiteralString, org_id: UUID, dag: str, job: str | None
) -> dict[UUID, str]:
    values = {"org_id": org_id, "dag": dag, "job": job}
    names = {row[0]: row[1] for row in await (await conn.execute(query, values)).fetchall()}
    if not names:
        description = f"job {job!r} in a deployed DAG {dag!r}" if job else f"deployed DAG {dag!r}"
        raise NotFound(f"no {description}; `trace dags` lists them")
    return names


_LIST = """
SELECT g.name AS dag, j.name AS job, p.tier, p.by_name AS by, bg.name AS by_dag, bj.name AS by_job,
       p.reason, p.since
  FROM pauses p JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
  LEFT JOIN jobs bj ON bj.job_id = p.by_job_id LEFT JOIN dags bg ON bg.dag_id = bj.dag_id
 WHERE j.org_id = %(org_id)s
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s) AND (%(job)s::text IS NULL OR j.name = %(job)s)
   AND (%(after_dag)s::text IS NULL
        OR (g.name, j.name, p.by_name) > (%(after_dag)s, %(after_job)s, %(after_by)s))
 ORDER BY g.name, j.name, p.by_name
 LIMIT %(limit)s
"""


async def list_pauses(
    conn: Conn,
    org_id: UUID,
    filters: JobNameFilter,
    *,
    after: tuple[str, str, str] | None,
    limit: int,
) -> list[PauseItem]:
    """List one page of an org's pauses. A job can have several: one by a user, and one per queue."""
    keys = ("after_dag", "after_job", "after_by")
    position = dict(zip(keys, after or (None, None, None), strict=True))
    values = {"org_id": org_id, **vars(filters), **position, "limit": limit}
    return await fetch_all(conn, PauseItem, _LIST, values)
