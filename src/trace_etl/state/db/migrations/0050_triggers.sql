-- What starts a job is separate from what it reads.

-- `reads`: false for an input that only starts the job. `trigger_index`: null if changes of the input do not
-- start the job. Otherwise the first input from the same producer: the outputs of one task are committed
-- together, so their events are one change, and the task is the one of that first input. `time_column`: the
-- time of a row, for a job with time partitions.
ALTER TABLE job_inputs
    ADD reads          boolean NOT NULL DEFAULT true,
    ADD trigger_index  integer,
    ADD time_column    text;

ALTER TABLE job_revisions
    ADD partition_by text CHECK (partition_by IN ('day', 'hour')),
    DROP CONSTRAINT job_revisions_execution_strategy_check,
    ADD CONSTRAINT job_revisions_execution_strategy_check
        CHECK (execution_strategy IN ('PerPartition', 'PerUpdate', 'WholeDataset'));

UPDATE job_inputs i SET reads = false
  FROM job_revisions own
 WHERE own.revision_id = i.revision_id
   AND own.operator NOT IN ('range_splitter', 'range_aggregator', 'parquet_compact', 'hot_trim')
   AND EXISTS (SELECT FROM job_outputs o JOIN job_revisions r USING (revision_id)
                WHERE o.dataset_uuid = i.dataset_uuid
                  AND r.operator IN ('source', 'range_splitter', 'range_aggregator'));
UPDATE job_inputs i SET trigger_index = k.first_index
  FROM (SELECT revision_id, input_index, min(input_index) OVER (
                   PARTITION BY revision_id, coalesce(d.job_id, d.dataset_uuid)) AS first_index
          FROM job_inputs JOIN datasets d USING (dataset_uuid)) k
 WHERE k.revision_id = i.revision_id AND k.input_index = i.input_index;

-- The values that an event passes to the tasks that it starts: `scheduled_time`, `payload`.
ALTER TABLE events ADD parameters jsonb;
-- `is_refresh`: the task makes one partition from everything that its inputs hold, such as a whole dataset
-- or a day. Requests for the same partition share a queued task.
ALTER TABLE tasks
    ADD parameters  jsonb,
    ADD is_refresh  boolean NOT NULL DEFAULT false;
CREATE INDEX tasks_refreshes ON tasks (job_id, partition_key, started_at) WHERE is_refresh;

-- --- creating tasks ---------------------------------------------------------------------------

ALTER TYPE new_task ADD ATTRIBUTE parameters jsonb;
ALTER TYPE new_task ADD ATTRIBUTE is_refresh boolean;

CREATE OR REPLACE FUNCTION new_task(
    org_id uuid, job_id uuid, revision_id uuid, runtime text, bulk boolean, dedupe_key text,
    max_attempts integer, max_concurrency integer, timeout_seconds integer, lease_seconds integer,
    dataset_uuid uuid DEFAULT NULL, dataset_version uuid DEFAULT NULL,
    partition_key text DEFAULT NULL, range_start bigint DEFAULT NULL, range_end bigint DEFAULT NULL,
    cursor_value bigint DEFAULT NULL, invalidation_id uuid DEFAULT NULL
) RETURNS new_task LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(org_id, job_id, revision_id, runtime, bulk, dedupe_key, max_attempts, max_concurrency,
           timeout_seconds, lease_seconds, dataset_uuid, dataset_version, partition_key,
           range_start, range_end, cursor_value, invalidation_id, 'Queued', NULL, NULL,
           false)::new_task;

CREATE OR REPLACE FUNCTION finished_task(
    org_id uuid, job_id uuid, revision_id uuid, bulk boolean, dedupe_key text, dataset_uuid uuid,
    dataset_version uuid, partition_key text, range_start bigint, range_end bigint,
    cursor_value bigint DEFAULT NULL, completion_hash bytea DEFAULT NULL
) RETURNS new_task LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(org_id, job_id, revision_id, 'dispatcher', bulk, dedupe_key, 1, NULL, 1, 1, dataset_uuid,
           dataset_version, partition_key, range_start, range_end, cursor_value, NULL, 'Completed',
           completion_hash, NULL, false)::new_task;

-- The same task with parameters. Few tasks have any.
CREATE FUNCTION with_parameters(task new_task, parameters jsonb) RETURNS new_task
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN parameters IS NULL THEN task
            ELSE jsonb_populate_record(task, jsonb_build_object('parameters', parameters)) END;

-- Insert tasks. Returns the inserted ones: a task whose key exists is left out.
CREATE OR REPLACE FUNCTION insert_tasks(wanted new_task[]) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO tasks AS t (
           org_id, job_id, revision_id, runtime, bulk, dedupe_key, max_attempts, max_concurrency,
           timeout_seconds, lease_seconds, dataset_uuid, dataset_version, partition_key,
           range_start, range_end, cursor_value, invalidation_id, status, completion_hash,
           parameters, is_refresh, started_at, finished_at)
    SELECT n.org_id, n.job_id, n.revision_id, n.runtime, n.bulk, n.dedupe_key, n.max_attempts,
           n.max_concurrency, n.timeout_seconds, n.lease_seconds, n.dataset_uuid,
           n.dataset_version, n.partition_key, n.range_start, n.range_end, n.cursor_value,
           n.invalidation_id, n.status, n.completion_hash, n.parameters, n.is_refresh,
           CASE n.status WHEN 'Completed' THEN now() END,
           CASE n.status WHEN 'Completed' THEN now() END
      FROM unnest(wanted) n
    ON CONFLICT ON CONSTRAINT tasks_dedupe DO NOTHING
    RETURNING t.*;
END
$$;

-- Emit one event for each producer (a `finished_task`) that is new, and enqueue its routing. With
-- `is_paused`, the event is deferred until the source resumes. Returns the events.
CREATE FUNCTION emit_source_events(producers new_task[], is_paused boolean DEFAULT false)
RETURNS SETOF events LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH producer AS (
        SELECT t.* FROM insert_tasks(producers) t
    ), emitted AS (
        INSERT INTO events AS e (org_id, dataset_uuid, dataset_version, scope_key, partition_key,
                                 range_start, range_end, cursor_value, producer_task_id, attempt,
                                 parameters)
        SELECT p.org_id, p.dataset_uuid, p.dataset_version,
               coalesce('p:' || p.partition_key, 'c:' || p.cursor_value), p.partition_key,
               p.range_start, p.range_end, p.cursor_value, p.task_id, 1, p.parameters
          FROM producer p
        RETURNING e.*
    ), deferred AS (
        INSERT INTO deferred_events (event_id, job_id, bulk)
        SELECT e.event_id, p.job_id, p.bulk
          FROM emitted e JOIN producer p ON p.task_id = e.producer_task_id
         WHERE is_paused
    ), enqueued AS (
        SELECT count(*) FROM enqueue(ARRAY(
               SELECT outbox_entry('route_event', e.event_id) FROM emitted e WHERE NOT is_paused))
    )
    SELECT emitted.* FROM emitted CROSS JOIN enqueued;
END
$$;

-- --- refreshes --------------------------------------------------------------------------------

-- The last request to make a partition again from everything that its inputs hold.
CREATE TABLE refresh_requests (
    job_id           uuid NOT NULL REFERENCES jobs,
    generation_hash  text NOT NULL,
    partition_key    text NOT NULL,
    requested_xid    xid8 NOT NULL,
    PRIMARY KEY (job_id, generation_hash, partition_key)
);

-- The days or hours that the rows of an input partition belong to, as the mapping task of a job found them. The
-- empty key is always there: it records that a partition was mapped, and from which snapshot.
CREATE TABLE time_keys (
    job_id           uuid NOT NULL REFERENCES jobs,
    generation_hash  text NOT NULL,
    input_version    uuid NOT NULL REFERENCES dataset_versions,
    input_key        text NOT NULL,
    time_key         text NOT NULL,
    read_snapshot    pg_snapshot NOT NULL,
    PRIMARY KEY (job_id, generation_hash, time_key, input_version, input_key)
);
CREATE INDEX time_keys_of_input ON time_keys (job_id, generation_hash, input_version, input_key);

-- Request partitions of jobs again: insert a task for each partition that has no queued one. A queued task
-- reads its inputs when it is claimed, so it answers all requests before that.
--
-- The request row makes concurrent requests wait for each other, in one order. The lock on the queued task
-- makes its claim wait for this transaction. A locked task counts as claimed, so nothing here waits for a
-- claim. A claim that waited may still use its older snapshot: `refresh_again` finds that at the commit.
CREATE FUNCTION request_refreshes(wanted new_task[]) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(wanted) = 0 THEN
        RETURN;
    END IF;
    INSERT INTO refresh_requests AS f (job_id, generation_hash, partition_key, requested_xid)
    SELECT DISTINCT w.job_id, r.generation_hash, w.partition_key, pg_current_xact_id()
      FROM unnest(wanted) w JOIN job_revisions r ON r.revision_id = w.revision_id
     ORDER BY 1, 2, 3
    ON CONFLICT (job_id, generation_hash, partition_key) DO UPDATE
       SET requested_xid = EXCLUDED.requested_xid;
    RETURN QUERY SELECT * FROM insert_refreshes(wanted);
END
$$;

-- Insert the tasks of refreshes whose partition has no queued task.
CREATE FUNCTION insert_refreshes(wanted new_task[]) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH unique_keys AS (
        SELECT DISTINCT ON (w.job_id, r.generation_hash, w.partition_key) w AS task,
               w.job_id, r.generation_hash, w.partition_key
          FROM unnest(wanted) w JOIN job_revisions r ON r.revision_id = w.revision_id
         ORDER BY w.job_id, r.generation_hash, w.partition_key, w.bulk
    ), waiting AS (
        SELECT q.job_id, own.generation_hash, q.partition_key
          FROM unique_keys u
          JOIN tasks q ON q.job_id = u.job_id AND q.partition_key = u.partition_key
           AND q.is_refresh AND q.started_at IS NULL AND q.status = 'Queued'
           AND NOT q.cancel_requested
          JOIN job_revisions own ON own.revision_id = q.revision_id
           AND own.generation_hash = u.generation_hash
           FOR UPDATE OF q SKIP LOCKED
    )
    SELECT t.* FROM insert_tasks(ARRAY(
        SELECT jsonb_populate_record(u.task, jsonb_build_object(
                   'is_refresh', true, 'dedupe_key', concat_ws(':', 'refresh', u.generation_hash,
                   u.partition_key, pg_current_xact_id())))
          FROM unique_keys u
         WHERE NOT EXISTS (SELECT FROM waiting w
                            WHERE w.job_id = u.job_id AND w.generation_hash = u.generation_hash
                              AND w.partition_key = u.partition_key))) t;
END
$$;

-- Whether a partition has seen a transaction, or has a task that sees or will see it.
CREATE FUNCTION is_refreshed(
    of_job uuid, of_revision uuid, of_generation text, of_key text, change xid8
) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM tasks t JOIN job_revisions own USING (revision_id)
     WHERE t.job_id = of_job AND t.partition_key = of_key AND t.is_refresh
       AND t.status <> 'Completed' AND own.generation_hash = of_generation
       AND CASE t.status WHEN 'Queued' THEN NOT t.cancel_requested
                         ELSE pg_visible_in_snapshot(change, t.pinned_snapshot) END)
    OR EXISTS (
    SELECT FROM job_outputs o
      JOIN partitions p ON p.dataset_version = o.dataset_version AND p.partition_key = of_key
     WHERE o.revision_id = of_revision AND pg_visible_in_snapshot(change, p.read_snapshot));

-- Insert the task of a refresh again if its partition was requested after the task pinned its inputs, and
-- no other task answers that request. Called when the partition is committed.
CREATE FUNCTION refresh_again(of_task uuid) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT n.* FROM insert_refreshes(ARRAY(
        SELECT new_task(t.org_id, t.job_id, t.revision_id, t.runtime, t.bulk, '', r.max_attempts,
                        t.max_concurrency, t.timeout_seconds, t.lease_seconds, t.dataset_uuid,
                        t.dataset_version, t.partition_key)
          FROM tasks t
          JOIN job_revisions r ON r.revision_id = t.revision_id
          JOIN refresh_requests f ON f.job_id = t.job_id
           AND f.generation_hash = r.generation_hash AND f.partition_key = t.partition_key
         WHERE t.task_id = of_task AND t.is_refresh
           AND NOT pg_visible_in_snapshot(f.requested_xid, t.pinned_snapshot)
           AND NOT is_refreshed(t.job_id, t.revision_id, r.generation_hash, t.partition_key,
                                f.requested_xid))) n;
END
$$;

-- --- routing ----------------------------------------------------------------------------------

-- The consumers of a generation whose changes start them. An edge inside a DAG reads one generation, an edge
-- across DAGs reads the current one. A job that reads a dataset twice has two rows. `trigger_dataset` and
-- `trigger_version` identify the task of a scope. `is_first` is true for the input that they belong to.
CREATE OR REPLACE VIEW consumers AS
SELECT i.dataset_uuid, coalesce(i.dataset_version, d.dataset_version) AS dataset_version,
       j.org_id, j.job_id, r.revision_id, r.generation_hash, r.runtime, r.update_strategy,
       r.priority = 'bulk' OR r.revision_id = j.building_revision_id IS TRUE AS bulk,
       r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
       k.dataset_uuid AS trigger_dataset,
       coalesce(k.dataset_version, kd.dataset_version) AS trigger_version,
       i.input_index = i.trigger_index AS is_first, i.reads, r.partition_by,
       r.execution_strategy = 'WholeDataset' AS is_whole
  FROM job_inputs i
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
  JOIN job_inputs k ON k.revision_id = i.revision_id AND k.input_index = i.trigger_index
  JOIN datasets kd ON kd.dataset_uuid = k.dataset_uuid
  JOIN job_revisions r ON r.revision_id = i.revision_id AND r.activation = 'reactive'
  JOIN jobs j ON j.job_id = r.job_id AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id);

-- Each input that starts the reactive revisions that are live or being built. `dataset_version` is null if
-- the input reads the current generation. `job` is the row of the job, for `is_paused`.
CREATE VIEW reactive_inputs AS
SELECT i.dataset_uuid, i.dataset_version, j.org_id, j.job_id, j AS job, r.revision_id,
       r.generation_hash, r.runtime, r.max_attempts, r.max_concurrency, r.timeout_seconds,
       r.heartbeat_timeout_seconds,
       r.priority = 'bulk' OR r.revision_id = j.building_revision_id IS TRUE AS is_bulk,
       k.dataset_uuid AS trigger_dataset,
       coalesce(k.dataset_version, kd.dataset_version) AS trigger_version, i.reads,
       r.execution_strategy = 'WholeDataset' AS is_whole
  FROM job_inputs i
  JOIN job_inputs k ON k.revision_id = i.revision_id AND k.input_index = i.trigger_index
  JOIN datasets kd ON kd.dataset_uuid = k.dataset_uuid
  JOIN job_revisions r ON r.revision_id = i.revision_id AND r.activation = 'reactive'
  JOIN jobs j ON j.job_id = r.job_id AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id);

-- --- consumers of data that exists ------------------------------------------------------------

-- The inputs that start every revision that reads events now: live, or being built. One per producer.
CREATE VIEW consumer_inputs AS
SELECT j.org_id, j.job_id, r.revision_id, r.runtime, r.generation_hash, r.execution_strategy,
       r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
       i.dataset_uuid, input_generation(i, d) AS dataset_version,
       i.dataset_version IS NOT NULL AS is_inside_dag, i.reads
  FROM job_revisions r
  JOIN jobs j ON j.job_id = r.job_id
  JOIN job_inputs i ON i.revision_id = r.revision_id AND i.input_index = i.trigger_index
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
 WHERE r.activation = 'reactive' AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id);

-- Whether an event waits until its own producer resumes.
CREATE FUNCTION is_held_by_producer(e events) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM deferred_events d JOIN tasks t ON t.job_id = d.job_id
                WHERE d.event_id = e.event_id AND t.task_id = e.producer_task_id);

-- Whether an event is a tick of a schedule that a later tick has replaced. Past ticks are not data.
CREATE FUNCTION is_past_tick(e events) RETURNS boolean LANGUAGE sql STABLE
RETURN coalesce(e.parameters ->> 'scheduled_time' < (
    SELECT max(l.parameters ->> 'scheduled_time') FROM events l
     WHERE l.dataset_version = e.dataset_version AND NOT is_held_by_producer(l)), false);

-- The scopes that a generation holds: its committed partitions or, if it has none, the scopes of its
-- events. A consumer that runs per update needs only the last cursor, and no consumer needs past ticks. With
-- `only_recent`, only recent events are returned, because they may have been routed while pointers moved.
CREATE FUNCTION generation_scopes(version uuid, execution_strategy text, only_recent boolean)
RETURNS TABLE (scope_key text, partition_key text, range_start bigint, range_end bigint,
               cursor_value bigint, changed_at timestamptz, parameters jsonb)
LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT 'p:' || p.partition_key, p.partition_key, p.range_start, p.range_end, NULL::bigint,
           p.committed_at, NULL::jsonb
      FROM partitions p WHERE p.dataset_version = version AND NOT only_recent
     UNION ALL
    SELECT e.scope_key, e.partition_key, e.range_start, e.range_end, e.cursor_value,
           NULL::timestamptz, e.parameters
      FROM events e
     WHERE e.dataset_version = version
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = version)
       AND (NOT only_recent OR e.accepted_at > now() - interval '10 minutes')
       AND NOT is_held_by_producer(e) AND NOT is_past_tick(e)
       AND (execution_strategy <> 'PerUpdate' OR e.cursor_value IS NULL
            OR e.cursor_value = (SELECT max(l.cursor_value) FROM events l
                                  WHERE l.dataset_version = version));
END;

-- --- claims -----------------------------------------------------------------------------------

-- The partitions of an input that have rows of a day or hour.
CREATE FUNCTION partitions_of_time(of_revision uuid, version uuid, of_key text)
RETURNS TABLE (partition_key text, range_start bigint, range_end bigint, storage_ref jsonb)
LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref
      FROM job_revisions own
      JOIN time_keys k ON k.job_id = own.job_id AND k.generation_hash = own.generation_hash
       AND k.input_version = version AND k.time_key = of_key
      JOIN partitions q ON q.dataset_version = k.input_version AND q.partition_key = k.input_key
     WHERE own.revision_id = of_revision;
END;

-- The inputs of a task at this moment, in order: input index, dataset version, published name, and the
-- partitions (key, first block, last block, storage), null if there are none. A day or hour without rows gets
-- one partition of its input, for the columns.
CREATE FUNCTION pinned_inputs(
    of_revision uuid, trigger_dataset uuid, trigger_version uuid, first_block bigint,
    last_block bigint, of_key text, is_refresh boolean
) RETURNS TABLE (pin json) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT json_build_array(i.input_index, v.dataset_version, n.name, p.partitions)
      FROM job_inputs i
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
      JOIN dataset_versions v
        ON v.dataset_version = input_generation(i, d, trigger_dataset, trigger_version)
      LEFT JOIN publications n ON n.dataset_uuid = i.dataset_uuid
     CROSS JOIN LATERAL (SELECT is_refresh AND i.time_column IS NOT NULL) AS t (is_mapped)
     CROSS JOIN LATERAL (
           SELECT json_agg(json_build_array(q.partition_key, q.range_start, q.range_end, q.storage_ref)
                           ORDER BY q.range_start, q.partition_key) AS partitions
             FROM (
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref FROM partitions q
                WHERE first_block IS NOT NULL AND q.dataset_version = v.dataset_version
                  AND overlaps_blocks(q, v.generation_no, first_block, last_block)
                UNION ALL
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref FROM partitions q
                WHERE first_block IS NULL AND of_key IS NOT NULL AND NOT t.is_mapped
                  AND q.dataset_version = v.dataset_version AND q.partition_key = of_key
                UNION ALL
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref FROM partitions q
                WHERE first_block IS NULL AND NOT t.is_mapped
                  AND q.dataset_version = v.dataset_version
                  AND NOT EXISTS (SELECT FROM partitions k
                                   WHERE k.dataset_version = v.dataset_version
                                     AND k.partition_key = of_key)
                UNION ALL
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref
                 FROM partitions_of_time(of_revision, v.dataset_version, of_key) q
                WHERE t.is_mapped
                UNION ALL
               (SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref
                  FROM partitions q
                 WHERE t.is_mapped AND q.dataset_version = v.dataset_version
                   AND NOT EXISTS (SELECT FROM partitions_of_time(
                                       of_revision, v.dataset_version, of_key))
                 ORDER BY q.partition_key LIMIT 1)
             ) q
      ) p
     WHERE i.revision_id = of_revision AND i.reads
     ORDER BY i.input_index;
END;

-- The columns of a task's payload. The statements that start tasks return the same columns.
CREATE OR REPLACE VIEW claimed_tasks AS
SELECT t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.org_id, t.revision_id,
       t.timeout_seconds, t.lease_seconds, t.dataset_uuid, t.dataset_version, t.partition_key,
       t.range_start, t.range_end, t.cursor_value, t.invalidation_id,
       (SELECT json_agg(pin) FROM pinned_inputs(t.revision_id, t.dataset_uuid, t.dataset_version,
                                                t.range_start, t.range_end, t.partition_key,
                                                t.is_refresh))::text AS pins,
       t.status, t.parameters, t.is_refresh
  FROM tasks t;
DROP FUNCTION pinned_inputs(uuid, uuid, uuid, bigint, bigint, text);

-- --- invalidations ----------------------------------------------------------------------------

-- The consumers that are routed invalidations of their inputs. A job over whole datasets is left out: it is
-- refreshed by the event of the rewrite.
CREATE OR REPLACE VIEW invalidation_targets AS
SELECT dataset_uuid, dataset_version, org_id, job_id, revision_id, generation_hash, runtime, bulk,
       max_attempts, max_concurrency, timeout_seconds, heartbeat_timeout_seconds,
       NOT (runtime = 'dispatcher' OR update_strategy = 'append' OR partition_by IS NOT NULL)
           AS has_partitions, is_first
  FROM consumers WHERE NOT is_whole;

-- The tasks that the invalid partitions triggered. A queued task reads the change when it is claimed.
CREATE OR REPLACE FUNCTION rerun_scopes_of_triggered_tasks(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, t.partition_key, t.range_start, t.range_end,
           t.cursor_value
      FROM invalidation_readers(ids) r
      JOIN consumers c ON c.revision_id = r.revision_id AND c.dataset_version = r.dataset_version
      JOIN invalid_partitions(ids) k ON k.invalidation_id = r.invalidation_id
      JOIN tasks t ON t.job_id = r.job_id
       AND t.dedupe_key = concat_ws(':', c.trigger_dataset, c.trigger_version, r.generation_hash,
                                    'p:' || k.partition_key)
     WHERE r.has_partitions AND (t.status IN ('Running', 'Completed')
                                 OR (t.status = 'Failed' AND t.retry_at IS NULL));
END;

-- Whether an input that starts a task's job became invalid while the task ran, and no other task processes
-- the invalidation. This happens if the routing did not see the task's claim. Reported defects, whose keys
-- begin with `doubt:`, are left out: the rewrite that a defect causes invalidates the input again.
CREATE FUNCTION missed_invalidation(t tasks) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM job_inputs i
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
      JOIN invalidations n
        ON n.dataset_version = input_generation(i, d, t.dataset_uuid, t.dataset_version)
       AND n.made_xid >= pg_snapshot_xmin(t.pinned_snapshot)
       AND n.once_key NOT LIKE 'doubt:%' IS NOT FALSE
     WHERE i.revision_id = t.revision_id AND i.trigger_index IS NOT NULL AND NOT t.is_refresh
       AND NOT pg_visible_in_snapshot(n.made_xid, t.pinned_snapshot)
       AND scopes_overlap(n.range_start, n.range_end, t.range_start, t.range_end)
       AND NOT (n.range_start IS NULL AND n.partition_key <> t.partition_key
                AND reads_one_key(n.dataset_version, t)) IS TRUE
       AND NOT EXISTS (
           SELECT FROM invalidation_consumers c JOIN tasks answer ON answer.task_id = c.task_id
            WHERE c.invalidation_id = n.invalidation_id AND c.job_id = t.job_id
              AND scopes_overlap(answer.range_start, answer.range_end, t.range_start, t.range_end)));

-- --- rollouts ---------------------------------------------------------------------------------

-- How much of the old generation each target of a rollout covers with its new one. Past ticks are not built
-- again, and time partitions depend on the columns of the new definition: a generation with at least one
-- partition covers them.
CREATE OR REPLACE VIEW rollout_coverage AS
SELECT g.rollout_id, g.dataset_uuid, g.from_version, g.to_version,
       old.partitions AS old_partitions, new.partitions AS new_partitions,
       coalesce(old.ranges, '{}') AS old_ranges,
       coalesce(old.ranges, '{}') - coalesce(new.ranges, '{}') AS missing_ranges,
       ARRAY(SELECT k.key FROM unnest(old.keys) AS k (key)
              WHERE new.keys IS NULL OR NOT EXISTS (
                    SELECT FROM job_outputs o JOIN job_revisions r USING (revision_id)
                     WHERE o.dataset_version = g.to_version AND r.partition_by IS NOT NULL)
                AND k.key !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$'
             EXCEPT SELECT unnest(new.keys) ORDER BY 1) AS missing_keys,
       old.last_cursor AS old_cursor, new.last_cursor AS new_cursor
  FROM rollout_targets g
 CROSS JOIN LATERAL (
       SELECT NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = g.from_version)
   ) AS kind (has_events_only)
 CROSS JOIN LATERAL generation_contents(g.from_version, kind.has_events_only) old
 CROSS JOIN LATERAL generation_contents(g.to_version, kind.has_events_only) new;

-- The DAGs that build a generation whose partitions are made from everything upstream, while a change
-- upstream is not part of it yet: an event is not routed, or a refresh has not ended.
CREATE VIEW refreshing_dags AS
SELECT t.dag_id
  FROM building_tasks t JOIN tasks k ON k.task_id = t.task_id
  JOIN job_revisions r ON r.revision_id = k.revision_id
 WHERE (k.is_refresh OR r.partition_by IS NOT NULL) AND NOT t.abandoned
   AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.retry_at IS NOT NULL))
 UNION
SELECT j.dag_id
  FROM jobs j JOIN datasets d ON d.job_id = j.job_id
  JOIN events e ON e.dataset_version = d.building_version AND e.routed_at IS NULL
 WHERE EXISTS (SELECT FROM jobs w JOIN job_revisions r ON r.revision_id = w.building_revision_id
                WHERE w.dag_id = j.dag_id
                  AND (r.execution_strategy = 'WholeDataset' OR r.partition_by IS NOT NULL))
   AND NOT EXISTS (SELECT FROM deferred_events f WHERE f.event_id = e.event_id);
