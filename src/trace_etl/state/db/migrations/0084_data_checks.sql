-- Data checks: rules for the rows of an output, checked by the worker before the partition is committed.

-- The checks of a job, as in its definition. Null: it has none.
ALTER TABLE job_revisions ADD checks jsonb;

-- The last result of each check, per partition. A result of an attempt that a check blocked is not committed:
-- it stays beside the results of the partition that readers see.
CREATE TABLE check_results (
    result_id        uuid NOT NULL DEFAULT gen_random_uuid(),
    org_id           uuid NOT NULL REFERENCES orgs,
    job_id           uuid NOT NULL REFERENCES jobs,
    dataset_uuid     uuid NOT NULL REFERENCES datasets,
    dataset_version  uuid NOT NULL,
    partition_key    text NOT NULL,
    name             text NOT NULL,
    kind             text NOT NULL,
    on_failure       text NOT NULL,
    consumers        text[] NOT NULL,
    is_committed     boolean NOT NULL,
    passed           boolean NOT NULL,
    checked_rows     bigint NOT NULL,
    failing_rows     bigint NOT NULL,
    samples          jsonb NOT NULL,
    message          text NOT NULL,
    task_id          uuid NOT NULL,
    attempt          integer NOT NULL,
    checked_at       timestamptz NOT NULL DEFAULT now(),
    accepted_at      timestamptz,
    accepted_by      text,
    accept_reason    text,
    PRIMARY KEY (dataset_version, partition_key, job_id, name, is_committed),
    CHECK (accepted_at IS NULL OR NOT passed)
);
CREATE INDEX check_results_listing ON check_results (org_id, checked_at DESC, result_id DESC);
CREATE INDEX check_results_by_dataset ON check_results (dataset_uuid, checked_at DESC, result_id DESC);
CREATE INDEX check_results_failed ON check_results (job_id, checked_at) WHERE NOT passed;

-- The partitions that a job must not read, because a check with `block_consumers` failed.
CREATE TABLE held_partitions (
    job_id           uuid NOT NULL REFERENCES jobs,
    dataset_version  uuid NOT NULL,
    partition_key    text NOT NULL,
    producer_id      uuid NOT NULL REFERENCES jobs,
    check_name       text NOT NULL,
    PRIMARY KEY (job_id, dataset_version, partition_key, producer_id, check_name)
);
CREATE INDEX held_partitions_of_dataset ON held_partitions (dataset_version, partition_key);

-- The held partitions that a task would read if it started now.
CREATE FUNCTION held_inputs(t tasks) RETURNS SETOF held_partitions LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT h.* FROM held_partitions h
     WHERE h.job_id = t.job_id AND EXISTS (
           SELECT FROM pinned_inputs(t.revision_id, t.dataset_uuid, t.dataset_version, t.range_start,
                                     t.range_end, t.partition_key, t.is_refresh) i
            CROSS JOIN LATERAL json_array_elements(
                  CASE json_typeof(i.pin -> 3) WHEN 'array' THEN i.pin -> 3 ELSE '[]' END) p
            WHERE i.pin ->> 1 = h.dataset_version::text AND p ->> 0 = h.partition_key);
END;

-- Whether a check holds a task. Claims call it for every task, so it looks for a held job first.
-- PL/pgSQL keeps its plans in a session and is never inlined into the plan of a claim.
CREATE FUNCTION is_held_by_check(t tasks) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM held_partitions h WHERE h.job_id = t.job_id) THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM held_inputs(t));
END
$$;

-- Say which check holds a queued task; null: none does.
CREATE FUNCTION explain_hold(of_task uuid) RETURNS text LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT concat('check ', h.check_name, ' of ', coalesce(p.name, concat_ws('.', j.name, d.output_name)),
                  ' failed for partition ', h.partition_key)
      FROM tasks t CROSS JOIN LATERAL held_inputs(t) h
      JOIN jobs j ON j.job_id = h.producer_id
      JOIN dataset_versions v ON v.dataset_version = h.dataset_version
      JOIN datasets d ON d.dataset_uuid = v.dataset_uuid
      LEFT JOIN publications p ON p.dataset_uuid = d.dataset_uuid
     WHERE t.task_id = of_task AND t.status = 'Queued'
     ORDER BY h.partition_key, h.check_name LIMIT 1;
END;

-- The functions of `0021_task_queries`, without tasks that a check holds: one at the head of a queue must not
-- keep the others from starting.
CREATE OR REPLACE FUNCTION uncapped_queue(
    of_job uuid, of_runtime text, takes_bulk boolean, max_tasks bigint
) RETURNS TABLE (task_id uuid, bulk boolean, queued_at timestamptz) LANGUAGE sql STABLE BEGIN ATOMIC
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NULL AND t.bulk = false
        AND NOT is_held_by_check(t)
      ORDER BY t.queued_at LIMIT max_tasks)
     UNION ALL
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NULL AND t.bulk AND takes_bulk
        AND NOT is_held_by_check(t)
      ORDER BY t.queued_at LIMIT max_tasks)
     ORDER BY bulk, queued_at LIMIT max_tasks;
END;

CREATE OR REPLACE FUNCTION capped_queue(
    of_job uuid, of_runtime text, takes_bulk boolean, max_tasks bigint
) RETURNS TABLE (task_id uuid, bulk boolean, queued_at timestamptz) LANGUAGE sql STABLE BEGIN ATOMIC
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NOT NULL AND t.bulk = false
        AND NOT is_held_by_check(t)
      ORDER BY t.queued_at LIMIT max_tasks)
     UNION ALL
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NOT NULL AND t.bulk AND takes_bulk
        AND NOT is_held_by_check(t)
      ORDER BY t.queued_at LIMIT max_tasks)
     ORDER BY bulk, queued_at LIMIT max_tasks;
END;

-- The checks of the outputs of a task's job.
CREATE FUNCTION checks_of_task(of_task uuid)
RETURNS TABLE (
    org_id uuid, job_id uuid, dag_id uuid, attempt integer, dataset_uuid uuid, dataset_version uuid,
    name text, kind text, on_failure text, consumers text[]
) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT t.org_id, t.job_id, j.dag_id, t.attempt, o.dataset_uuid, o.dataset_version, c.name, c.kind,
           c.on_failure, c.consumers
      FROM tasks t JOIN jobs j ON j.job_id = t.job_id
      JOIN job_revisions r ON r.revision_id = t.revision_id
     CROSS JOIN LATERAL jsonb_to_recordset(coalesce(r.checks, '[]')) AS c (
           name text, output text, kind text, on_failure text, consumers text[])
      JOIN job_outputs o ON o.revision_id = r.revision_id AND o.name = c.output
     WHERE t.task_id = of_task;
END;

-- Each result as the API returns it. A blocked result counts until a later attempt commits the partition.
CREATE VIEW check_details AS
SELECT c.org_id, c.result_id, p.name AS dataset, g.name AS dag, j.name AS job, d.output_name AS output,
       c.dataset_uuid, c.dataset_version, c.partition_key, c.name AS "check", c.kind, c.on_failure,
       c.consumers, c.is_committed, c.passed, c.checked_rows, c.failing_rows, c.samples, c.message,
       c.task_id, c.attempt, c.checked_at, c.accepted_at, c.accepted_by, c.accept_reason, c.job_id,
       CASE WHEN c.passed THEN 'passed'
            WHEN NOT c.is_committed THEN 'blocked'
            WHEN c.accepted_at IS NOT NULL THEN 'accepted'
            WHEN EXISTS (SELECT FROM held_partitions h
                          WHERE h.dataset_version = c.dataset_version
                            AND h.partition_key = c.partition_key
                            AND h.producer_id = c.job_id AND h.check_name = c.name) THEN 'holding'
            ELSE 'warned' END AS state
  FROM check_results c
  JOIN jobs j ON j.job_id = c.job_id JOIN dags g ON g.dag_id = j.dag_id
  JOIN datasets d ON d.dataset_uuid = c.dataset_uuid
  LEFT JOIN publications p ON p.dataset_uuid = c.dataset_uuid
 WHERE c.dataset_version IN (d.dataset_version, d.building_version)
   AND (c.is_committed OR NOT EXISTS (
        SELECT FROM partitions q
         WHERE q.dataset_version = c.dataset_version AND q.partition_key = c.partition_key
           AND q.committed_at > c.checked_at));
