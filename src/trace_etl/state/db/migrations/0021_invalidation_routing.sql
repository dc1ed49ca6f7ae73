-- The steps that find the scopes which consumers of an invalid scope have to build again.

CREATE TYPE new_invalidation AS (
    dataset_uuid     uuid,
    dataset_version  uuid,
    kind             text,
    partition_key    text,
    range_start      bigint,
    range_end        bigint,
    filter           jsonb,
    reason           text,
    once_key         text
);

-- A scope that the revision of a consumer has to build again because of an invalidation.
CREATE TYPE rerun_scope AS (
    invalidation_id  uuid,
    revision_id      uuid,
    partition_key    text,
    range_start      bigint,
    range_end        bigint,
    cursor_value     bigint
);

-- --- the consumers and the partitions of invalidations ----------------------------------------

-- The consumers that are routed invalidations of their inputs.
CREATE VIEW invalidation_targets AS
SELECT dataset_uuid, dataset_version, org_id, job_id, revision_id, generation_hash, runtime, bulk,
       max_attempts, max_concurrency, timeout_seconds, heartbeat_timeout_seconds,
       NOT (runtime = 'dispatcher' OR update_strategy = 'append') AS has_partitions, true AS is_first
  FROM consumers;

-- The consumers of the generations that invalidations are about, each revision once per invalidation.
CREATE FUNCTION invalidation_readers(ids uuid[])
RETURNS TABLE (
    invalidation_id uuid, kind text, dataset_uuid uuid, dataset_version uuid, partition_key text,
    range_start bigint, range_end bigint, org_id uuid, job_id uuid, revision_id uuid,
    generation_hash text, runtime text, bulk boolean, max_attempts integer, max_concurrency integer,
    timeout_seconds integer, heartbeat_timeout_seconds integer, has_partitions boolean,
    is_rewrite boolean
) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT DISTINCT ON (i.invalidation_id, c.revision_id)
           i.invalidation_id, i.kind, i.dataset_uuid, i.dataset_version, i.partition_key,
           i.range_start, i.range_end, c.org_id, c.job_id, c.revision_id, c.generation_hash,
           c.runtime, c.bulk, c.max_attempts, c.max_concurrency, c.timeout_seconds,
           c.heartbeat_timeout_seconds, c.has_partitions,
           coalesce(i.once_key LIKE 'rewritten:%', false)
      FROM invalidations i
      JOIN invalidation_targets c ON c.dataset_uuid = i.dataset_uuid
       AND c.dataset_version = i.dataset_version AND c.org_id = i.org_id
     WHERE i.invalidation_id = ANY (ids)
     ORDER BY i.invalidation_id, c.revision_id, c.is_first DESC;
END;

-- The keys of the partitions that invalidations are about.
CREATE FUNCTION invalid_partitions(ids uuid[])
RETURNS TABLE (invalidation_id uuid, partition_key text) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT i.invalidation_id, i.partition_key
      FROM invalidations i WHERE i.invalidation_id = ANY (ids) AND i.partition_key IS NOT NULL
     UNION
    SELECT i.invalidation_id, p.partition_key
      FROM invalidations i
      JOIN dataset_versions v ON v.dataset_version = i.dataset_version
      JOIN partitions p ON p.dataset_version = i.dataset_version
       AND overlaps_blocks(p, v.generation_no, i.range_start, i.range_end)
     WHERE i.invalidation_id = ANY (ids) AND i.range_start IS NOT NULL;
END;

-- --- the scopes that a consumer has to build again --------------------------------------------

-- A consumer without partitions (an inline operator, an append) receives the invalid scope itself.
CREATE FUNCTION rerun_scopes_without_partitions(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, r.partition_key, r.range_start, r.range_end,
           NULL::bigint
      FROM invalidation_readers(ids) r WHERE NOT r.has_partitions;
END;

-- The tasks that the invalid partitions triggered. A queued task reads the change when it is claimed.
CREATE FUNCTION rerun_scopes_of_triggered_tasks(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, t.partition_key, t.range_start, t.range_end,
           t.cursor_value
      FROM invalidation_readers(ids) r
      JOIN invalid_partitions(ids) k ON k.invalidation_id = r.invalidation_id
      JOIN tasks t ON t.job_id = r.job_id
       AND t.dedupe_key = concat_ws(':', r.dataset_uuid, r.dataset_version, r.generation_hash,
                                    'p:' || k.partition_key)
     WHERE r.has_partitions AND (t.status IN ('Running', 'Completed')
                                 OR (t.status = 'Failed' AND t.retry_at IS NULL));
END;

-- The tasks that produced an output which overlaps the invalid blocks.
CREATE FUNCTION rerun_scopes_of_outputs(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, coalesce(t.partition_key, q.partition_key),
           coalesce(t.range_start, q.range_start), coalesce(t.range_end, q.range_end), NULL::bigint
      FROM invalidation_readers(ids) r
      JOIN job_outputs o ON o.revision_id = r.revision_id
      JOIN dataset_versions v ON v.dataset_version = o.dataset_version
      JOIN partitions q ON q.dataset_version = o.dataset_version
       AND overlaps_blocks(q, v.generation_no, r.range_start, r.range_end)
      JOIN tasks t ON t.task_id = q.task_id
     WHERE r.has_partitions AND r.range_start IS NOT NULL;
END;

-- The tasks whose output was made from an invalid partition, or from the whole generation, according
-- to the recorded lineage.
CREATE FUNCTION rerun_scopes_of_lineage(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, t.partition_key,
           coalesce(t.range_start, q.range_start), coalesce(t.range_end, q.range_end),
           CASE WHEN q.range_start IS NULL THEN t.cursor_value END
      FROM invalidation_readers(ids) r
      JOIN (SELECT k.invalidation_id, k.partition_key FROM invalid_partitions(ids) k
             UNION ALL
            SELECT a.id, '*' FROM unnest(ids) AS a (id)) k ON k.invalidation_id = r.invalidation_id
      JOIN partition_inputs l
        ON l.input_version = r.dataset_version AND l.input_key = k.partition_key
      JOIN job_outputs o
        ON o.revision_id = r.revision_id AND o.dataset_version = l.dataset_version
      JOIN partitions q ON q.dataset_version = l.dataset_version
       AND q.partition_key = l.partition_key AND q.task_id = l.task_id
      JOIN tasks t ON t.task_id = q.task_id
     WHERE r.has_partitions;
END;

-- The running tasks, because they may have pinned invalid partitions.
CREATE FUNCTION rerun_scopes_of_running_tasks(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, t.partition_key, t.range_start, t.range_end,
           t.cursor_value
      FROM invalidation_readers(ids) r
      JOIN tasks t ON t.job_id = r.job_id AND t.status = 'Running'
      JOIN job_revisions own
        ON own.revision_id = t.revision_id AND own.generation_hash = r.generation_hash
     WHERE r.has_partitions
       AND scopes_overlap(t.range_start, t.range_end, r.range_start, r.range_end);
END;

-- The scopes that all the functions above return. Scopes that overlap are merged, because a rerun must
-- replace every partition that it overlaps.
CREATE FUNCTION rerun_scopes(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    WITH found AS (
        SELECT * FROM rerun_scopes_without_partitions(ids)
         UNION ALL
        SELECT * FROM rerun_scopes_of_triggered_tasks(ids)
         UNION ALL
        SELECT * FROM rerun_scopes_of_outputs(ids)
         UNION ALL
        SELECT * FROM rerun_scopes_of_lineage(ids)
         UNION ALL
        SELECT * FROM rerun_scopes_of_running_tasks(ids)
    ), begins AS (
        SELECT f.*, f.range_start > max(f.range_end) OVER earlier IS NOT FALSE AS is_first
          FROM found f WHERE f.range_start IS NOT NULL
        WINDOW earlier AS (PARTITION BY f.invalidation_id, f.revision_id
                           ORDER BY f.range_start, f.range_end
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), islands AS (
        SELECT b.*, count(*) FILTER (WHERE b.is_first) OVER (
                      PARTITION BY b.invalidation_id, b.revision_id
                      ORDER BY b.range_start, b.range_end) AS island
          FROM begins b
    )
    SELECT i.invalidation_id, i.revision_id, concat(min(i.range_start), '-', max(i.range_end)),
           min(i.range_start), max(i.range_end), NULL::bigint
      FROM islands i GROUP BY i.invalidation_id, i.revision_id, i.island
     UNION ALL
    SELECT f.invalidation_id, f.revision_id, f.partition_key, NULL::bigint, NULL::bigint,
           max(f.cursor_value)
      FROM found f WHERE f.range_start IS NULL
     GROUP BY f.invalidation_id, f.revision_id, f.partition_key;
END;

-- --- the tasks that process an invalidation ---------------------------------------------------

-- Create tasks and record which invalidation each of them processes. Returns the ids of the new
-- tasks.
CREATE FUNCTION create_rerun_tasks(wanted new_task[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO invalidation_consumers AS c (invalidation_id, job_id, task_id)
    SELECT t.invalidation_id, t.job_id, t.task_id FROM create_tasks(wanted) t
    RETURNING c.task_id;
END
$$;
