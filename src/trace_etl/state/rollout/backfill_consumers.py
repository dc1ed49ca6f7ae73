"""Giving a generation everything that its inputs already hold, a statement for all of it."""

from typing import LiteralString
from uuid import UUID

from trace_etl.state.db.pool import Conn

# The scopes of an input: its committed partitions; of one without any, what its events were about.
# A job that runs per update needs the last cursor only. A scope whose task of old was done before
# the input changed again is asked for once more, under a key of its own. Wake-ups of many tasks are
# spread over time: whatever else is to be done comes in between.
_FILL: LiteralString = """
, scopes AS (
    SELECT w.*, 'p:' || p.partition_key AS scope_key, p.partition_key, p.range_start, p.range_end,
           NULL::bigint AS cursor_value, p.committed_at AS changed_at
      FROM wanted w JOIN partitions p ON p.dataset_version = w.dataset_version
     WHERE NOT %(lately)s
     UNION ALL
    SELECT w.*, e.scope_key, e.partition_key, e.range_start, e.range_end, e.cursor_value,
           NULL::timestamptz
      FROM wanted w JOIN events e ON e.dataset_version = w.dataset_version
     WHERE NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = w.dataset_version)
       AND (NOT %(lately)s OR e.accepted_at > now() - interval '10 minutes')
       AND (w.execution_strategy = 'PerPartition' OR e.cursor_value IS NULL
            OR e.cursor_value = (SELECT max(l.cursor_value) FROM events l
                                  WHERE l.dataset_version = w.dataset_version))
), keyed AS (
    SELECT DISTINCT ON (s.revision_id, s.dataset_version, s.scope_key) s.*,
           concat_ws(':', s.dataset_uuid, s.dataset_version, s.generation_hash, s.scope_key) AS key
      FROM scopes s ORDER BY s.revision_id, s.dataset_version, s.scope_key
), created AS (
    SELECT task_id, runtime FROM insert_tasks(ARRAY(
           SELECT new_task(k.org_id, k.job_id, k.revision_id, k.runtime, true,
                           CASE WHEN done.started_at < k.changed_at
                                THEN concat(k.key, ':',
                                            (extract(epoch FROM k.changed_at) * 1000000)::bigint)
                                ELSE k.key END,
                           k.max_attempts, k.max_concurrency, k.timeout_seconds,
                           k.heartbeat_timeout_seconds, k.dataset_uuid, k.dataset_version,
                           k.partition_key, k.range_start, k.range_end, k.cursor_value)
             FROM keyed k LEFT JOIN tasks done ON done.job_id = k.job_id
              AND done.dedupe_key = k.key AND done.status = 'Completed'
            ORDER BY k.range_start, k.partition_key))
)
SELECT count(*) FROM enqueue(ARRAY(
    SELECT wake_entry(task_id, runtime, make_interval(
               secs => greatest(0, row_number() OVER () - 500) / 5000.0))
      FROM created))
"""
_WANTED: LiteralString = """
    SELECT j.org_id, j.job_id, r.revision_id, r.runtime, r.generation_hash, r.execution_strategy,
           r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
           i.dataset_uuid, input_generation(i, d) AS dataset_version
      FROM job_revisions r JOIN jobs j USING (job_id)
      JOIN job_inputs i ON i.revision_id = r.revision_id
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
     WHERE r.activation = 'reactive' AND j.active
       AND r.revision_id IN (j.revision_id, j.building_revision_id)
"""
_FILL_REVISIONS = (
    "WITH wanted AS (" + _WANTED + " AND r.revision_id = ANY(%(revision_ids)s))" + _FILL
)
_FILL_READERS = (
    "WITH wanted AS ("
    + _WANTED
    + " AND i.dataset_version IS NULL AND i.dataset_uuid = ANY(%(dataset_uuids)s))"
    + _FILL
)


async def fill(conn: Conn, revision_ids: list[UUID], *, lately: bool = False) -> int:
    """Create the tasks of revisions for all that their inputs hold. Returns how many were new.

    Once in the transaction that moves pointers, and once after it for what happened `lately`: an
    event that was accepted and routed by the old pointers in between would be nobody's. Partitions
    the reconciler compares anyway.
    """
    values = {"revision_ids": revision_ids, "lately": lately}
    row = await (await conn.execute(_FILL_REVISIONS, values)).fetchone()
    return row[0] if row else 0


async def fill_readers(conn: Conn, dataset_uuids: list[UUID], *, lately: bool = False) -> int:
    """The same for the readers in other DAGs of datasets that have another generation now."""
    values = {"dataset_uuids": dataset_uuids, "lately": lately}
    row = await (await conn.execute(_FILL_READERS, values)).fetchone()
    return row[0] if row else 0


# A source that only passes on what it is told cannot be run again: what it was told is its events.
_EMIT_AGAIN = """
WITH emitted AS (
    INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, partition_key,
                        range_start, range_end, cursor_value, producer_task_id, attempt)
    SELECT e.org_id, fresh.dataset_uuid, fresh.dataset_version, e.scope_key, e.partition_key,
           e.range_start, e.range_end, e.cursor_value, e.producer_task_id, e.attempt
      FROM jobs j JOIN job_revisions r ON r.revision_id = j.building_revision_id
      JOIN job_outputs fresh ON fresh.revision_id = j.building_revision_id
       AND fresh.output_index = 0
      JOIN job_outputs old ON old.revision_id = j.revision_id AND old.output_index = 0
      JOIN events e ON e.dataset_version = old.dataset_version
     WHERE j.dag_id = %(dag_id)s AND r.operator = 'source'
    ON CONFLICT ON CONSTRAINT events_once DO NOTHING
    RETURNING event_id
)
SELECT count(*) FROM enqueue(ARRAY(SELECT outbox_entry('route_event', event_id) FROM emitted))
"""


async def emit_again(conn: Conn, dag_id: UUID) -> int:
    """Emit in the new generation of plain sources what the old one emitted and it did not."""
    row = await (await conn.execute(_EMIT_AGAIN, {"dag_id": dag_id})).fetchone()
    return row[0] if row else 0


_BOOTSTRAP = """
SELECT count(*) FROM emit_source_events(ARRAY(
    SELECT finished_task(j.org_id, j.job_id, o.revision_id, false,
                         concat('trigger:', o.dataset_version, ':', k.partition_key),
                         o.dataset_uuid, o.dataset_version, k.partition_key, a.range_start,
                         a.range_end)
      FROM unnest(%(job_ids)s::uuid[], %(starts)s::bigint[], %(ends)s::bigint[])
           AS a (job_id, range_start, range_end)
     CROSS JOIN LATERAL (SELECT concat(a.range_start, '-', a.range_end) AS partition_key) k
      JOIN jobs j USING (job_id)
      JOIN job_outputs o ON o.revision_id = coalesce(j.building_revision_id, j.revision_id)
       AND o.output_index = 0))
"""


async def bootstrap(conn: Conn, asked: list[tuple[UUID, int, int]]) -> int:
    """Emit the ranges that sources ask for by themselves, each once: job, first, last block."""
    values = {
        "job_ids": [a[0] for a in asked],
        "starts": [a[1] for a in asked],
        "ends": [a[2] for a in asked],
    }
    row = await (await conn.execute(_BOOTSTRAP, values)).fetchone()
    return row[0] if row else 0
