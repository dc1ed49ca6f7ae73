"""Plan, create and list backfills."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_args
from uuid import UUID

from trace_etl.api.user.tasks.backfills import BackfillItem, BackfillState, ChunkItem, ChunkState
from trace_etl.model.errors import NotFound
from trace_etl.model.scope import Range
from trace_etl.policy.backfill import Chunk, ExistingScope, estimate_time_left, keeps_partitions
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import (
    JobNameFilter,
    NewestFirstKey,
    fetch_all,
    fetch_dicts,
    newest_first_values,
)

_SAMPLE = 2_000  # partitions from which length and row density are estimated


@dataclass(frozen=True)
class BackfillTarget:
    """A job to backfill, with one of its inputs."""

    job_id: UUID
    activation: str
    operator: str
    update_strategy: str
    makes_whole: bool
    """Whether its partitions are made from everything upstream: a whole dataset, or days."""
    generation_hash: str
    output_version: UUID | None
    dataset_uuid: UUID | None
    dataset_version: UUID | None
    upstream: str | None
    upstream_operator: str | None
    upstream_strategy: str | None
    upstream_config: dict[str, Any] | None
    source: str | None
    """The kind of source if the job is a source. Its chunks are then triggers."""

    def dedupe_key(self, span: Range) -> str:
        """Return the key that routing gives to the task of this scope."""
        if self.source is not None:
            return f"trigger:{self.dataset_version}:{span.key}"
        parts = (self.dataset_uuid, self.dataset_version, self.generation_hash, f"p:{span.key}")
        return ":".join(str(part) for part in parts)


_LIST_TARGETS = """
SELECT j.job_id, r.activation, r.operator, r.update_strategy, r.generation_hash,
       r.execution_strategy = 'WholeDataset' OR r.partition_by IS NOT NULL AS makes_whole,
       o.dataset_version AS output_version,
       CASE r.activation WHEN 'source' THEN o.dataset_uuid ELSE i.dataset_uuid END AS dataset_uuid,
       CASE r.activation WHEN 'source' THEN o.dataset_version
            ELSE input_generation(i, d) END AS dataset_version,
       concat_ws('.', ug.name, uj.name, w.output_name) AS upstream,
       ur.operator AS upstream_operator, ur.update_strategy AS upstream_strategy,
       ur.config AS upstream_config, r.source ->> 'kind' AS source
  FROM dags g JOIN jobs j USING (dag_id) JOIN job_revisions r ON r.revision_id = j.revision_id
  LEFT JOIN job_outputs o ON o.revision_id = r.revision_id AND o.output_index = 0
  LEFT JOIN job_inputs i ON i.revision_id = r.revision_id AND i.input_index = i.trigger_index
  LEFT JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
  LEFT JOIN LATERAL (SELECT p.job_id, p.output_name FROM dataset_producers p
                      WHERE p.dataset_uuid = d.dataset_uuid ORDER BY p.job_id LIMIT 1) w ON true
  LEFT JOIN jobs uj ON uj.job_id = w.job_id
  LEFT JOIN dags ug ON ug.dag_id = uj.dag_id
  LEFT JOIN job_revisions ur ON ur.revision_id = uj.revision_id
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND j.name = %(job)s AND j.active
 ORDER BY i.input_index
"""


async def list_targets(conn: Conn, org_id: UUID, dag: str, job: str) -> list[BackfillTarget]:
    """Return a deployed job as one target per input. Raises NotFound."""
    targets = await fetch_all(
        conn, BackfillTarget, _LIST_TARGETS, {"org_id": org_id, "dag": dag, "job": job}
    )
    if not targets:
        raise NotFound(f"no job {job!r} in a deployed DAG {dag!r}; `trace jobs` lists them")
    return targets


_LIST_READERS = """
SELECT g.name || '.' || j.name, bool_and(r.operator = ANY(%(forwarders)s))
  FROM job_inputs i JOIN jobs j ON j.revision_id = i.revision_id AND j.active
  JOIN job_revisions r ON r.revision_id = j.revision_id JOIN dags g USING (dag_id)
 WHERE i.dataset_uuid = %(dataset_uuid)s
 GROUP BY 1 ORDER BY 1
"""


async def list_readers(
    conn: Conn, dataset_uuid: UUID, forwarders: Collection[str]
) -> dict[str, bool]:
    """List the jobs that read a dataset, as `dag.job`, and whether each only forwards scopes."""
    values = {"dataset_uuid": dataset_uuid, "forwarders": list(forwarders)}
    return {row[0]: row[1] for row in await (await conn.execute(_LIST_READERS, values)).fetchall()}


_LIST_PARTITIONS = """
SELECT p.range_start, p.range_end,
       (SELECT sum(q.row_count)::bigint FROM partitions q
         WHERE q.task_id = p.task_id AND q.partition_key = p.partition_key)
  FROM dataset_versions v JOIN partitions p
    ON p.dataset_version = v.dataset_version
   AND overlaps_blocks(p, v.generation_no, %(start)s, %(end)s)
 WHERE v.dataset_version = %(version)s
 ORDER BY p.range_start
"""


async def list_partitions(conn: Conn, version: UUID, span: Range) -> list[ExistingScope]:
    """List the partitions of a generation that overlap a range, with the rows of all outputs."""
    values = {"version": version, "start": span.start, "end": span.end}
    cursor = await conn.execute(_LIST_PARTITIONS, values)
    return [ExistingScope(Range(row[0], row[1]), row[2]) for row in await cursor.fetchall()]


_LIST_COMPLETED = """
SELECT range_start, range_end FROM tasks
 WHERE job_id = %(job_id)s AND dedupe_key = ANY(%(keys)s) AND status = 'Completed'
"""


async def list_completed(
    conn: Conn, target: BackfillTarget, spans: Sequence[Range]
) -> list[ExistingScope]:
    """List the given scopes that a job without partitions has completed."""
    values = {"job_id": target.job_id, "keys": [target.dedupe_key(span) for span in spans]}
    cursor = await conn.execute(_LIST_COMPLETED, values)
    return [ExistingScope(Range(row[0], row[1]), None) for row in await cursor.fetchall()]


_SAMPLE_PARTITIONS = """
SELECT coalesce(array_agg(range_end - range_start + 1), '{}'), sum(row_count)::float8
  FROM (SELECT range_start, range_end,
               (SELECT sum(q.row_count) FROM partitions q
                 WHERE q.task_id = p.task_id AND q.partition_key = p.partition_key) AS row_count
          FROM partitions p
         WHERE dataset_version = %(version)s AND range_start IS NOT NULL LIMIT %(sample)s) p
"""


async def sample_partitions(conn: Conn, version: UUID) -> tuple[list[int], float | None]:
    """Return the lengths of partitions and the rows per block, or None without partitions."""
    values = {"version": version, "sample": _SAMPLE}
    row = await (await conn.execute(_SAMPLE_PARTITIONS, values)).fetchone()
    lengths: list[int] = row[0] if row else []
    return lengths, (row[1] / sum(lengths) if row and lengths else None)


@dataclass(frozen=True)
class NewBackfill:
    """A requested backfill."""

    org_id: UUID
    target: BackfillTarget
    span: Range
    chunk: int
    force: bool
    made_by: str


_LOCK_JOB = "SELECT pg_advisory_xact_lock(hashtextextended('backfill:' || %(job_id)s::text, 0))"
_FIND_SAME = """
SELECT backfill_id, state FROM backfills
 WHERE job_id = %(job_id)s AND generation_hash = %(generation_hash)s AND range_start = %(start)s
   AND range_end = %(end)s AND chunk = %(chunk)s AND force = %(force)s
 ORDER BY state = 'running' DESC, created_at DESC LIMIT 1
"""
_CREATE = """
INSERT INTO backfills (org_id, job_id, generation_hash, dataset_uuid, dataset_version, range_start,
                       range_end, chunk, force, made_by, keeps_partitions, state, ended_at)
VALUES (%(org_id)s, %(job_id)s, %(generation_hash)s, %(dataset_uuid)s, %(dataset_version)s,
        %(start)s, %(end)s, %(chunk)s, %(force)s, %(made_by)s,
        %(keeps_partitions)s, CASE WHEN %(empty)s THEN 'complete' ELSE 'running' END,
        CASE WHEN %(empty)s THEN now() END)
RETURNING backfill_id
"""
_CREATE_CHUNKS = """
INSERT INTO backfill_chunks (backfill_id, range_start, range_end, action, state, row_count)
SELECT %(backfill_id)s, c.first, c.last, c.action,
       CASE WHEN c.action IN ('build', 'rebuild') THEN 'pending' ELSE 'skipped' END, c.row_count
  FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[], %(actions)s::text[], %(rows)s::bigint[])
       AS c (first, last, action, row_count)
"""


async def lock_job(conn: Conn, job_id: UUID) -> None:
    """Lock the creation of backfills of a job until commit."""
    await conn.execute(_LOCK_JOB, {"job_id": job_id})


async def find_same(conn: Conn, new: NewBackfill) -> tuple[UUID, str] | None:
    """Find the backfill that the same request created before, with its state."""
    row = await (await conn.execute(_FIND_SAME, _make_values(new))).fetchone()
    return (row[0], row[1]) if row else None


async def create(conn: Conn, new: NewBackfill, chunks: Sequence[Chunk]) -> UUID:
    """Create a backfill with its chunks. A backfill without a chunk to build is complete immediately."""
    empty = not any(c.action in ("build", "rebuild") for c in chunks)
    (row,) = await (await conn.execute(_CREATE, {**_make_values(new), "empty": empty})).fetchall()
    backfill_id: UUID = row[0]
    values: dict[str, object] = {
        "backfill_id": backfill_id,
        "starts": [c.span.start for c in chunks],
        "ends": [c.span.end for c in chunks],
        "actions": [c.action for c in chunks],
        "rows": [c.rows for c in chunks],
    }
    await conn.execute(_CREATE_CHUNKS, values)
    return backfill_id


def _make_values(new: NewBackfill) -> dict[str, Any]:
    return {
        "org_id": new.org_id,
        "job_id": new.target.job_id,
        "generation_hash": new.target.generation_hash,
        "dataset_uuid": new.target.dataset_uuid,
        "dataset_version": new.target.dataset_version,
        "start": new.span.start,
        "end": new.span.end,
        "chunk": new.chunk,
        "force": new.force,
        "made_by": new.made_by,
        "keeps_partitions": keeps_partitions(new.target.operator, new.target.update_strategy),
    }


_GET = """
SELECT * FROM backfill_progress WHERE org_id = %(org_id)s AND backfill_id = %(backfill_id)s
"""
_LIST = """
SELECT * FROM backfill_progress
 WHERE org_id = %(org_id)s
   AND (%(dag)s::text IS NULL OR dag = %(dag)s)
   AND (%(job)s::text IS NULL OR job = %(job)s)
   AND (%(state)s::text IS NULL OR state = %(state)s)
   AND (%(before)s::timestamptz IS NULL
        OR (created_at, backfill_id) < (%(before)s, %(before_id)s))
 ORDER BY created_at DESC, backfill_id DESC
 LIMIT %(limit)s
"""


async def get_backfill(conn: Conn, org_id: UUID, backfill_id: UUID) -> BackfillItem:
    """Read one backfill and its progress. Raises NotFound."""
    rows = await fetch_dicts(conn, _GET, {"org_id": org_id, "backfill_id": backfill_id})
    if not rows:
        raise NotFound(f"no backfill {backfill_id}; `trace backfills` lists them")
    return _make_item(rows[0])


@dataclass(frozen=True)
class BackfillFilter(JobNameFilter):
    state: BackfillState | None = None


async def list_backfills(
    conn: Conn, org_id: UUID, filters: BackfillFilter, *, after: NewestFirstKey | None, limit: int
) -> list[BackfillItem]:
    """List one page of an org's backfills, newest first."""
    rows = await fetch_dicts(conn, _LIST, newest_first_values(org_id, filters, after, limit))
    return [_make_item(row) for row in rows]


def _make_item(row: dict[str, Any]) -> BackfillItem:
    rate, seconds_left = estimate_time_left(
        row["recent_blocks"], row["blocks_left"], row["recent_seconds"]
    )
    counts = dict.fromkeys(get_args(ChunkState), 0) | row["chunks"]
    return BackfillItem(**row, **counts, blocks_per_second=rate, seconds_left=seconds_left)


_LIST_CHUNKS = """
SELECT c.range_start AS start, c.range_end AS end, c.action, c.state, c.row_count AS rows, c.task_id,
       t.status AS task_status,
       CASE WHEN c.state = 'failed' AND t.status = 'Completed'
            THEN 'the task completed without publishing its outputs, so these blocks have no partition; '
                 'publish a partition for every output, if need be without rows, then resume the backfill'
            ELSE t.error_message END AS error_message
  FROM backfill_chunks c LEFT JOIN tasks t USING (task_id)
 WHERE c.backfill_id = %(backfill_id)s AND (%(state)s::text IS NULL OR c.state = %(state)s)
   AND c.range_start > %(after)s
 ORDER BY c.range_start LIMIT %(limit)s
"""


async def list_chunks(
    conn: Conn, backfill_id: UUID, *, state: ChunkState | None, after: int, limit: int
) -> list[ChunkItem]:
    """List one page of the chunks of a backfill, by first block."""
    values = {"backfill_id": backfill_id, "state": state, "after": after, "limit": limit}
    return await fetch_all(conn, ChunkItem, _LIST_CHUNKS, values)
