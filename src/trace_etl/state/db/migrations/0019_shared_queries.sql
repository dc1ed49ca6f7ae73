-- Predicates, functions and views that several statements share. They are plain SQL, so the planner
-- inlines them: the plan is the same as if the statement repeated their text.

-- --- predicates -------------------------------------------------------------------------------

-- Whether a partition of the generation has a block of the range. The index `partitions_do_not_overlap`
-- has the same expression.
CREATE FUNCTION overlaps_blocks(
    p partitions, generation_no integer, first_block bigint, last_block bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN box(point(p.generation_no, p.range_start), point(p.generation_no, p.range_end))
    && box(point(generation_no, first_block), point(generation_no, last_block));

-- Whether two scopes may share a block. A scope without a block range may overlap every other scope.
CREATE FUNCTION scopes_overlap(a_start bigint, a_end bigint, b_start bigint, b_end bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN a_start IS NULL OR b_start IS NULL OR (a_start <= b_end AND b_start <= a_end);

-- Whether a job is paused for a kind of task: for bulk tasks if `bulk` is true, otherwise for normal ones.
CREATE FUNCTION is_paused(j jobs, bulk boolean)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN j.paused_at IS NOT NULL OR (bulk AND j.bulk_paused_at IS NOT NULL);

-- The generation that an input reads. An edge inside a DAG names it. An edge across DAGs reads the
-- generation whose change triggered the task, or else the current one.
CREATE FUNCTION input_generation(
    i job_inputs, d datasets, trigger_dataset uuid DEFAULT NULL, trigger_version uuid DEFAULT NULL
) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(i.dataset_version,
                CASE WHEN i.dataset_uuid = trigger_dataset THEN trigger_version END,
                d.dataset_version);

-- The table of Postgres data that holds the rows of a generation.
CREATE FUNCTION hot_table_name(dataset_uuid uuid, dataset_version uuid)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'dataset_' || replace(dataset_uuid::text, '-', '') || '_'
    || left(replace(dataset_version::text, '-', ''), 16);

-- --- rows that statements receive as JSON -----------------------------------------------------

CREATE TYPE publication_entry AS (
    name          text,
    dataset_uuid  uuid,
    description   text,
    storage       text,
    write_mode    text,
    columns       jsonb
);

-- --- rollouts ---------------------------------------------------------------------------------

-- The contents of a generation: its partitions and, if `with_events` is true, the scopes of its events.
-- Callers set `with_events` for generations whose rows are not stored in partitions.
CREATE FUNCTION generation_contents(version uuid, with_events boolean)
RETURNS TABLE (ranges int8multirange, keys text[], last_cursor bigint, partitions bigint)
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT range_agg(int8range(range_start, range_end, '[]')) FILTER (WHERE range_start IS NOT NULL),
           array_agg(partition_key) FILTER (WHERE range_start IS NULL AND partition_key IS NOT NULL),
           max(cursor_value), count(*) FILTER (WHERE is_partition)
      FROM (SELECT p.partition_key, p.range_start, p.range_end, NULL::bigint AS cursor_value,
                   true AS is_partition
              FROM partitions p WHERE p.dataset_version = version
             UNION ALL
            SELECT e.partition_key, e.range_start, e.range_end, e.cursor_value, false
              FROM events e WHERE with_events AND e.dataset_version = version) held;
END;

-- How much of the old generation each target of a rollout covers with its new one.
CREATE VIEW rollout_coverage AS
SELECT g.rollout_id, g.dataset_uuid, g.from_version, g.to_version,
       old.partitions AS old_partitions, new.partitions AS new_partitions,
       coalesce(old.ranges, '{}') AS old_ranges,
       coalesce(old.ranges, '{}') - coalesce(new.ranges, '{}') AS missing_ranges,
       ARRAY(SELECT unnest(old.keys) EXCEPT SELECT unnest(new.keys) ORDER BY 1) AS missing_keys,
       old.last_cursor AS old_cursor, new.last_cursor AS new_cursor
  FROM rollout_targets g
 CROSS JOIN LATERAL (
       SELECT NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = g.from_version)
   ) AS kind (has_events_only)
 CROSS JOIN LATERAL generation_contents(g.from_version, kind.has_events_only) old
 CROSS JOIN LATERAL generation_contents(g.to_version, kind.has_events_only) new;

-- The tasks of the generations that rollouts build, whichever revision of the generation they have.
CREATE VIEW building_tasks AS
SELECT j.dag_id, j.name AS job, t.task_id, t.status, t.retry_at, t.abandoned, t.partition_key,
       t.attempt, t.error_code, t.error_message, t.finished_at
  FROM jobs j
  JOIN job_revisions building ON building.revision_id = j.building_revision_id
  JOIN tasks t ON t.job_id = j.job_id
  JOIN job_revisions own ON own.revision_id = t.revision_id
   AND own.generation_hash = building.generation_hash;

-- The tasks whose generation is neither the live one of their job nor the one that is being built.
CREATE VIEW unwanted_tasks AS
SELECT j.dag_id, t.task_id, t.status, t.retry_at
  FROM jobs j JOIN tasks t ON t.job_id = j.job_id
 WHERE NOT t.abandoned
   AND (NOT j.active OR NOT EXISTS (
        SELECT FROM job_revisions own, job_revisions kept
         WHERE own.revision_id = t.revision_id
           AND kept.revision_id IN (j.revision_id, j.building_revision_id)
           AND own.generation_hash = kept.generation_hash));

-- The generations of jobs that were retired longer ago than `retention` and have rows in one of the
-- tables. A buffered dataset belongs to a name and returns with it, so its tables stay.
CREATE FUNCTION expired_generations(tables text[], retention interval)
RETURNS TABLE (job_id uuid, generation_hash text) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT DISTINCT r.job_id, r.generation_hash
      FROM dataset_versions v
      JOIN datasets d ON d.dataset_uuid = v.dataset_uuid AND d.job_id IS NOT NULL
      JOIN job_outputs o ON o.dataset_version = v.dataset_version
      JOIN job_revisions r ON r.revision_id = o.revision_id
     WHERE v.abandoned_at < now() - retention
       AND hot_table_name(v.dataset_uuid, v.dataset_version) = ANY (tables);
END;

-- --- lineage ----------------------------------------------------------------------------------

-- Each output of a job with the names of its DAG, job and published dataset.
CREATE VIEW named_outputs AS
SELECT d.dataset_uuid, n.name AS dataset, g.name AS dag, j.name AS job, d.output_name AS output
  FROM dataset_producers d
  JOIN jobs j ON j.job_id = d.job_id
  JOIN dags g ON g.dag_id = j.dag_id
  LEFT JOIN publications n ON n.dataset_uuid = d.dataset_uuid;

-- The inputs of each committed partition.
CREATE VIEW committed_inputs AS
SELECT l.dataset_version, l.partition_key, l.input_version, l.input_key, l.input_task_id,
       l.input_attempt, p.task_id, p.attempt
  FROM partition_inputs l
  JOIN partitions p ON p.dataset_version = l.dataset_version
   AND p.partition_key = l.partition_key AND p.task_id = l.task_id;

-- The partitions upstream of a partition, direct and indirect.
CREATE FUNCTION partition_ancestors(of_version uuid, of_key text, max_depth integer)
RETURNS TABLE (depth integer, version uuid, key text, task_id uuid, attempt integer,
               via_version uuid, via_key text)
LANGUAGE sql STABLE BEGIN ATOMIC
    WITH RECURSIVE found (depth, version, key, task_id, attempt, via_version, via_key) AS (
        SELECT 1, l.input_version, l.input_key, l.input_task_id, l.input_attempt,
               l.dataset_version, l.partition_key
          FROM committed_inputs l
         WHERE l.dataset_version = of_version AND l.partition_key = of_key
         UNION
        SELECT f.depth + 1, l.input_version, l.input_key, l.input_task_id, l.input_attempt,
               l.dataset_version, l.partition_key
          FROM found f
          JOIN partition_inputs l ON l.dataset_version = f.version AND l.partition_key = f.key
           AND l.task_id = f.task_id
         WHERE f.depth < max_depth
    )
    SELECT * FROM found;
END;

-- The partitions downstream of a partition, direct and indirect.
CREATE FUNCTION partition_descendants(of_version uuid, of_key text, max_depth integer)
RETURNS TABLE (depth integer, version uuid, key text, task_id uuid, attempt integer,
               via_version uuid, via_key text)
LANGUAGE sql STABLE BEGIN ATOMIC
    WITH RECURSIVE found (depth, version, key, task_id, attempt, via_version, via_key) AS (
        SELECT 1, l.dataset_version, l.partition_key, l.task_id, l.attempt, l.input_version,
               l.input_key
          FROM committed_inputs l
         WHERE l.input_version = of_version AND l.input_key IN (of_key, '*')
         UNION
        SELECT f.depth + 1, l.dataset_version, l.partition_key, l.task_id, l.attempt,
               l.input_version, l.input_key
          FROM found f
          JOIN committed_inputs l ON l.input_version = f.version AND l.input_key IN (f.key, '*')
         WHERE f.depth < max_depth
    )
    SELECT * FROM found;
END;
