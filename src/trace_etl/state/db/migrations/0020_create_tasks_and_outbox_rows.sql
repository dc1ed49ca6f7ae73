-- The only places that create rows of `outbox` and `tasks`. A statement calls these functions once for
-- all its rows: `SELECT … FROM create_tasks(ARRAY(SELECT new_task(…) FROM wanted))`.
--
-- Hazard: a CTE that only calls a function runs only if the rest of the statement reads the CTE.
-- The functions are PL/pgSQL because a session then keeps their plans on every version of Postgres.

CREATE TYPE outbox_entry AS (
    kind     text,
    target   text,
    subject  uuid,
    body     jsonb,
    delay    interval,  -- before the first try
    tries    integer
);

CREATE FUNCTION outbox_entry(
    kind text, subject uuid, target text DEFAULT '', body jsonb DEFAULT NULL
) RETURNS outbox_entry LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(kind, target, subject, body, interval '0', 0)::outbox_entry;

-- The entry that makes a queued task start: a message to workers of its runtime, or a run inside the
-- Dispatcher.
CREATE FUNCTION wake_entry(
    task_id uuid, runtime text, delay interval DEFAULT '0', tries integer DEFAULT 0
) RETURNS outbox_entry LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(CASE runtime WHEN 'dispatcher' THEN 'run_inline' ELSE 'wake_up' END, runtime, task_id,
           NULL, delay, tries)::outbox_entry;

CREATE FUNCTION enqueue(entries outbox_entry[]) RETURNS SETOF outbox LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO outbox (kind, target, subject, body, tries, next_try_at)
    SELECT e.kind, e.target, e.subject, e.body, e.tries, now() + e.delay FROM unnest(entries) e
    RETURNING *;
END
$$;

CREATE TYPE new_task AS (
    org_id           uuid,
    job_id           uuid,
    revision_id      uuid,
    runtime          text,
    bulk             boolean,
    dedupe_key       text,
    max_attempts     integer,
    max_concurrency  integer,
    timeout_seconds  integer,
    lease_seconds    integer,
    dataset_uuid     uuid,
    dataset_version  uuid,
    partition_key    text,
    range_start      bigint,
    range_end        bigint,
    cursor_value     bigint,
    invalidation_id  uuid,
    status           text,
    completion_hash  bytea
);

CREATE FUNCTION new_task(
    org_id uuid, job_id uuid, revision_id uuid, runtime text, bulk boolean, dedupe_key text,
    max_attempts integer, max_concurrency integer, timeout_seconds integer, lease_seconds integer,
    dataset_uuid uuid DEFAULT NULL, dataset_version uuid DEFAULT NULL,
    partition_key text DEFAULT NULL, range_start bigint DEFAULT NULL, range_end bigint DEFAULT NULL,
    cursor_value bigint DEFAULT NULL, invalidation_id uuid DEFAULT NULL
) RETURNS new_task LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(org_id, job_id, revision_id, runtime, bulk, dedupe_key, max_attempts, max_concurrency,
           timeout_seconds, lease_seconds, dataset_uuid, dataset_version, partition_key,
           range_start, range_end, cursor_value, invalidation_id, 'Queued', NULL)::new_task;

-- A task of a source that is Completed from the start: the producer of the source's event.
CREATE FUNCTION finished_task(
    org_id uuid, job_id uuid, revision_id uuid, bulk boolean, dedupe_key text, dataset_uuid uuid,
    dataset_version uuid, partition_key text, range_start bigint, range_end bigint,
    cursor_value bigint DEFAULT NULL, completion_hash bytea DEFAULT NULL
) RETURNS new_task LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(org_id, job_id, revision_id, 'dispatcher', bulk, dedupe_key, 1, NULL, 1, 1, dataset_uuid,
           dataset_version, partition_key, range_start, range_end, cursor_value, NULL, 'Completed',
           completion_hash)::new_task;

-- Insert tasks. Returns the inserted ones: a task whose key exists is left out.
CREATE FUNCTION insert_tasks(wanted new_task[]) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO tasks AS t (
           org_id, job_id, revision_id, runtime, bulk, dedupe_key, max_attempts, max_concurrency,
           timeout_seconds, lease_seconds, dataset_uuid, dataset_version, partition_key,
           range_start, range_end, cursor_value, invalidation_id, status, completion_hash,
           started_at, finished_at)
    SELECT n.org_id, n.job_id, n.revision_id, n.runtime, n.bulk, n.dedupe_key, n.max_attempts,
           n.max_concurrency, n.timeout_seconds, n.lease_seconds, n.dataset_uuid,
           n.dataset_version, n.partition_key, n.range_start, n.range_end, n.cursor_value,
           n.invalidation_id, n.status, n.completion_hash,
           CASE n.status WHEN 'Completed' THEN now() END,
           CASE n.status WHEN 'Completed' THEN now() END
      FROM unnest(wanted) n
    ON CONFLICT ON CONSTRAINT tasks_dedupe DO NOTHING
    RETURNING t.*;
END
$$;

-- Insert queued tasks and enqueue what makes each of them start. Returns the inserted ones.
CREATE FUNCTION create_tasks(wanted new_task[]) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH created AS (
        SELECT t.* FROM insert_tasks(wanted) t
    ), woken AS (
        SELECT count(*)
          FROM enqueue(ARRAY(SELECT wake_entry(c.task_id, c.runtime) FROM created c))
    )
    SELECT created.* FROM created CROSS JOIN woken;
END
$$;

-- The entry that sends a batch to the sink.
CREATE FUNCTION buffer_entry(batch buffer_publishes) RETURNS outbox_entry LANGUAGE sql STABLE
RETURN outbox_entry('buffer_message', batch.publish_id, 'buffer', jsonb_build_object(
    'kind', 'buffer_batch', 'publish_id', batch.publish_id, 'org_id', batch.org_id,
    'dataset_uuid', batch.dataset_uuid, 'dataset_version', batch.dataset_version,
    'batch_uri', batch.batch_uri, 'record_count', batch.record_count,
    'producer', jsonb_build_object('task_id', batch.task_id, 'attempt', batch.attempt)));
