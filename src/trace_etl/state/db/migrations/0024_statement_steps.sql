-- Views and functions that name the steps of long statements.

-- --- claims -----------------------------------------------------------------------------------

-- The oldest uncapped tasks of each job that is not paused. Claims use it while any job is paused. If
-- nothing is queued for the runtime, the result is empty and the jobs are not scanned.
CREATE FUNCTION uncapped_queue_beside_pauses(of_runtime text, per_job bigint, max_tasks bigint)
RETURNS TABLE (task_id uuid, bulk boolean, queued_at timestamptz) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT t.task_id, t.bulk, t.queued_at
      FROM jobs j
     CROSS JOIN LATERAL uncapped_queue(j.job_id, of_runtime, j.bulk_paused_at IS NULL, per_job) t
     WHERE j.paused_at IS NULL AND j.capped_operator IS NULL
       AND EXISTS (SELECT FROM jobs WHERE paused_at IS NOT NULL OR bulk_paused_at IS NOT NULL)
       AND EXISTS (SELECT FROM tasks WHERE runtime = of_runtime AND status = 'Queued')
     ORDER BY t.bulk, t.queued_at LIMIT max_tasks;
END;

-- --- events -----------------------------------------------------------------------------------

-- Each event as the API returns it. A buffered dataset has several producers: the view then names the
-- job of the task that reported the event.
CREATE VIEW event_details AS
SELECT e.org_id, e.event_id, g.name AS dag, j.name AS job, d.output_name AS output,
       p.name AS dataset, e.dataset_uuid, e.dataset_version, e.partition_key,
       e.range_start AS start, e.range_end AS "end", e.cursor_value AS cursor, e.producer_task_id,
       e.attempt, e.accepted_at, e.routed_at
  FROM events e JOIN datasets d USING (dataset_uuid)
  JOIN jobs j ON j.job_id = coalesce(d.job_id, (
       SELECT t.job_id FROM tasks t WHERE t.task_id = e.producer_task_id))
  JOIN dags g USING (dag_id) LEFT JOIN publications p ON p.dataset_uuid = d.dataset_uuid;

-- --- change stream ----------------------------------------------------------------------------

-- The last change of each task, as the stream shows it.
CREATE VIEW task_changes AS
SELECT t.org_id, t.changed_xid, t.task_id, g.name AS dag, j.name AS job,
       jsonb_build_object(
           'task_id', t.task_id, 'status', t.status, 'attempt', t.attempt,
           'max_attempts', t.max_attempts, 'partition_key', t.partition_key,
           'cursor', t.cursor_value, 'worker_id', t.worker_id, 'retry_at', t.retry_at,
           'cancel_requested', t.cancel_requested, 'cause', t.cause,
           'error_code', t.error_code, 'error_message', left(t.error_message, 500),
           'at', CASE t.status WHEN 'Queued' THEN t.queued_at WHEN 'Running' THEN t.started_at
                               ELSE coalesce(t.finished_at, (
                                   SELECT a.ended_at FROM task_attempts a
                                    WHERE a.task_id = t.task_id AND a.attempt = t.attempt))
                 END) AS body
  FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id);

-- The current generation of each dataset and the one being built, with the names that the stream shows.
CREATE VIEW streamed_generations AS
SELECT d.org_id, d.dataset_uuid, d.output_name, n.name AS dataset, g.name AS dag, j.name AS job,
       v.dataset_version, v.dataset_version = d.dataset_version AS is_current
  FROM datasets d JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
  LEFT JOIN publications n USING (dataset_uuid)
 CROSS JOIN LATERAL (VALUES (d.dataset_version), (d.building_version)) v (dataset_version);
