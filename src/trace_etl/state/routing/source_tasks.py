"""Tasks of sources with a function: each tick, delivery or trigger is a task, which emits the events."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_one


@dataclass(frozen=True)
class SourceTask:
    """The task of a scope of a source."""

    task_id: UUID
    created: bool
    is_same: bool
    """Whether it has the parameters of this request. An earlier task may have other ones."""


# The task of a paused job is created, too, and stays queued until the job resumes.
_CREATE = """
WITH wanted AS (
    SELECT j.job_id, with_parameters(new_task(
               j.org_id, j.job_id, r.revision_id, r.runtime, r.priority = 'bulk', %(dedupe_key)s,
               r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
               NULL, NULL, %(partition_key)s, %(start)s, %(end)s, %(cursor)s), %(parameters)s) AS task
      FROM jobs j JOIN job_revisions r USING (revision_id)
     WHERE j.job_id = %(job_id)s
), created AS (
    SELECT task_id FROM create_tasks(ARRAY(SELECT task FROM wanted))
)
SELECT task_id, true AS created, true AS is_same FROM created
"""
_FIND = """
SELECT t.task_id, false AS created, t.parameters IS NOT DISTINCT FROM %(parameters)s AS is_same
  FROM tasks t
 WHERE t.job_id = %(job_id)s AND t.dedupe_key = %(dedupe_key)s
"""


async def create(
    conn: Conn,
    job_id: UUID,
    *,
    dedupe_key: str,
    partition_key: str | None = None,
    start: int | None = None,
    end: int | None = None,
    cursor: int | None = None,
    parameters: dict[str, Any] | None = None,
) -> SourceTask:
    """Create the task of a scope of a source, or return the one that was created before."""
    values = {
        "job_id": job_id,
        "dedupe_key": dedupe_key,
        "partition_key": partition_key,
        "start": start,
        "end": end,
        "cursor": cursor,
        "parameters": None if parameters is None else Jsonb(parameters),
    }
    task = await fetch_one(conn, SourceTask, _CREATE, values)
    task = task or await fetch_one(conn, SourceTask, _FIND, values)
    assert task is not None  # the keys of tasks are unique, and retention deletes no job
    return task
