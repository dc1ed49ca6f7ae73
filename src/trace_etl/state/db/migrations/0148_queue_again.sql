-- Queue tasks again that were canceled, or were asked to stop. An attempt that was asked to stop may still
-- run. The task continues with the next attempt, so a late completion of the old attempt is refused, as after
-- a lost lease. The caller has locked the tasks. Returns their number.
CREATE FUNCTION queue_again(wanted uuid[], why text) RETURNS bigint LANGUAGE sql VOLATILE BEGIN ATOMIC
    WITH stopped AS (
        SELECT task_id, status, attempt, worker_id, started_at, lease_token, isolation
          FROM tasks WHERE task_id = ANY(wanted)
    ), ended AS (
        INSERT INTO task_attempts (task_id, attempt, worker_id, started_at, outcome, error_message,
                                   isolation)
        SELECT task_id, attempt, worker_id, started_at, 'Canceled', why, isolation
          FROM stopped WHERE status = 'Running'
        ON CONFLICT (task_id, attempt) DO NOTHING
    ), again AS (
        UPDATE tasks t
           SET status = 'Queued', abandoned = false, cancel_requested = false, queued_at = now(),
               attempt = CASE WHEN s.lease_token IS NULL THEN t.attempt ELSE t.attempt + 1 END,
               max_attempts = t.attempt + t.max_attempts, retry_at = NULL, lease_token = NULL,
               lease_expires_at = NULL, deadline_at = NULL, worker_id = NULL, started_at = NULL,
               finished_at = NULL, completion_hash = NULL, cause = NULL, error_code = NULL,
               error_message = NULL, isolation = NULL
          FROM stopped s WHERE t.task_id = s.task_id
        RETURNING t.task_id, t.runtime
    ), woken AS (
        SELECT count(*) FROM enqueue(ARRAY(SELECT wake_entry(task_id, runtime) FROM again))
    )
    SELECT count(*) FROM again CROSS JOIN woken;
END;

-- Whether no attempt of a task will run unless it is asked for: it failed permanently, or a person canceled
-- it. Tasks of definitions that the DAG no longer has, and those of canceled backfills, stay as they are.
CREATE FUNCTION has_stopped(t tasks) RETURNS boolean LANGUAGE sql STABLE
RETURN (CASE t.status WHEN 'Failed' THEN t.retry_at IS NULL
                      WHEN 'Canceled' THEN true
                      ELSE t.status = 'Running' AND t.cancel_requested END)
   AND NOT t.abandoned
   AND (t.status = 'Failed' OR NOT EXISTS (SELECT FROM backfill_chunks c WHERE c.task_id = t.task_id))
   AND NOT EXISTS (SELECT FROM unwanted_tasks u WHERE u.task_id = t.task_id);
