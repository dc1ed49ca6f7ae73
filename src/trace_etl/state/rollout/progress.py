"""How far a rollout is: what is covered, what still runs, what failed."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, dict_row

from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.rollout.deployed_state import blocks

_MOST_FAILURES = 20


@dataclass(frozen=True)
class Target:
    """A dataset whose new generation has to cover the old one."""

    job: str
    output: str
    name: str | None
    from_version: UUID
    to_version: UUID
    old_partitions: int
    new_partitions: int
    blocks: int
    """How many the old generation covers."""
    missing_blocks: int
    missing: list[tuple[int, int]]
    missing_keys: list[str]
    cursor: int | None
    new_cursor: int | None


@dataclass(frozen=True)
class BuildingJob:
    """The tasks of a job's new generation that have not completed."""

    job: str
    queued: int
    running: int
    retrying: int
    failed: int
    canceled: int


@dataclass(frozen=True)
class FailedTask:
    task_id: UUID
    job: str
    partition_key: str | None
    attempt: int
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True)
class Rollout:
    rollout_id: UUID
    dag: str
    dag_version: UUID
    previous_version: UUID | None
    state: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Progress:
    rollout: Rollout
    targets: list[Target]
    jobs: list[BuildingJob]
    failures: list[FailedTask]


_LATEST = """
SELECT r.rollout_id, g.name AS dag, r.dag_version, r.previous_version, r.state, r.started_at,
       r.ended_at
  FROM dags g JOIN rollouts r USING (dag_id)
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s
   AND (%(dag_version)s::uuid IS NULL OR r.dag_version = %(dag_version)s)
 ORDER BY r.started_at DESC LIMIT 1
"""


async def progress(conn: Conn, org_id: UUID, dag: str, dag_version: UUID | None = None) -> Progress:
    """The last rollout of a DAG, or of one version of it. Raises NotFound."""
    async with conn.cursor(row_factory=class_row(Rollout)) as cursor:
        values = {"org_id": org_id, "dag": dag, "dag_version": dag_version}
        await cursor.execute(_LATEST, values)
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(f"no DAG {dag!r} is deployed; `trace dags` lists them")
    if found.state != "building":
        return Progress(found, [], [], [])
    key = {"rollout_id": found.rollout_id, "limit": _MOST_FAILURES}
    return Progress(
        found,
        await _targets(conn, key),
        await _jobs(conn, key),
        await _failures(conn, key),
    )


_TARGETS = """
SELECT j.name AS job, d.output_name AS output, p.name, c.*
  FROM rollout_coverage c
  JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
  LEFT JOIN publications p USING (dataset_uuid)
 WHERE c.rollout_id = %(rollout_id)s
 ORDER BY j.name, d.output_name
"""


async def _targets(conn: Conn, key: dict[str, Any]) -> list[Target]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_TARGETS, key)
        return [_target(row) for row in await cursor.fetchall()]


def _target(row: dict[str, Any]) -> Target:
    held, missing = blocks(row["old_ranges"]), blocks(row["missing_ranges"])
    return Target(
        job=row["job"],
        output=row["output"],
        name=row["name"],
        from_version=row["from_version"],
        to_version=row["to_version"],
        old_partitions=row["old_partitions"],
        new_partitions=row["new_partitions"],
        blocks=sum(end - start + 1 for start, end in held),
        missing_blocks=sum(end - start + 1 for start, end in missing),
        missing=missing,
        missing_keys=row["missing_keys"],
        cursor=row["old_cursor"],
        new_cursor=row["new_cursor"],
    )


_JOBS = """
SELECT t.job, count(*) FILTER (WHERE t.status = 'Queued') AS queued,
       count(*) FILTER (WHERE t.status = 'Running') AS running,
       count(*) FILTER (WHERE t.status = 'Failed' AND t.retry_at IS NOT NULL) AS retrying,
       count(*) FILTER (WHERE t.status = 'Failed' AND t.retry_at IS NULL) AS failed,
       count(*) FILTER (WHERE t.status = 'Canceled') AS canceled
  FROM rollouts r JOIN building_tasks t USING (dag_id)
 WHERE r.rollout_id = %(rollout_id)s AND NOT t.abandoned
   AND t.status IN ('Queued', 'Running', 'Failed', 'Canceled')
 GROUP BY t.job ORDER BY t.job
"""
_FAILURES = """
SELECT t.task_id, t.job, t.partition_key, t.attempt, t.error_code, t.error_message
  FROM rollouts r JOIN building_tasks t USING (dag_id)
 WHERE r.rollout_id = %(rollout_id)s AND NOT t.abandoned
   AND t.status = 'Failed' AND t.retry_at IS NULL
 ORDER BY t.finished_at LIMIT %(limit)s
"""


async def _jobs(conn: Conn, key: dict[str, Any]) -> list[BuildingJob]:
    async with conn.cursor(row_factory=class_row(BuildingJob)) as cursor:
        await cursor.execute(_JOBS, key)
        return await cursor.fetchall()


async def _failures(conn: Conn, key: dict[str, Any]) -> list[FailedTask]:
    async with conn.cursor(row_factory=class_row(FailedTask)) as cursor:
        await cursor.execute(_FAILURES, key)
        return await cursor.fetchall()
