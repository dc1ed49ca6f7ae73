-- Functions and views that several statements about tasks share. The planner inlines them.

-- --- claims -----------------------------------------------------------------------------------

-- The next tasks of a job for a runtime that have no cap. Reads no tasks of other runtimes, and no bulk
-- tasks unless `takes_bulk` is true. `'' || status` matches the index `tasks_uncapped` and no other.
CREATE FUNCTION uncapped_queue(of_job uuid, of_runtime text, takes_bulk boolean, max_tasks bigint)
RETURNS TABLE (task_id uuid, bulk boolean, queued_at timestamptz) LANGUAGE sql STABLE BEGIN ATOMIC
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NULL AND t.bulk = false
      ORDER BY t.queued_at LIMIT max_tasks)
     UNION ALL
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NULL AND t.bulk AND takes_bulk
      ORDER BY t.queued_at LIMIT max_tasks)
     ORDER BY bulk, queued_at LIMIT max_tasks;
END;

-- The next tasks of a job for a runtime that have a cap. Uses the index `tasks_capped`.
CREATE FUNCTION capped_queue(of_job uuid, of_runtime text, takes_bulk boolean, max_tasks bigint)
RETURNS TABLE (task_id uuid, bulk boolean, queued_at timestamptz) LANGUAGE sql STABLE BEGIN ATOMIC
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NOT NULL AND t.bulk = false
      ORDER BY t.queued_at LIMIT max_tasks)
     UNION ALL
    (SELECT t.task_id, t.bulk, t.queued_at FROM tasks t
      WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
        AND NOT t.cancel_requested AND t.max_concurrency IS NOT NULL AND t.bulk AND takes_bulk
      ORDER BY t.queued_at LIMIT max_tasks)
     ORDER BY bulk, queued_at LIMIT max_tasks;
END;

-- How many more tasks a job may run. The cap is that of the job's oldest queued task that has one; if no
-- queued task has a cap, no row is returned. With OFFSET 0, a statement that uses the number several
-- times counts the running tasks only once.
CREATE FUNCTION room_under_job_cap(of_job uuid, of_runtime text)
RETURNS TABLE (room bigint) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT greatest(0, q.max_concurrency - (SELECT count(*) FROM tasks r
                                             WHERE r.job_id = of_job AND r.status = 'Running'))
      FROM (SELECT t.max_concurrency FROM tasks t
             WHERE t.job_id = of_job AND '' || t.status = 'Queued' AND t.runtime = of_runtime
               AND NOT t.cancel_requested AND t.max_concurrency IS NOT NULL
             ORDER BY t.bulk, t.queued_at LIMIT 1) q
    OFFSET 0;
END;

-- How many more tasks of a capped operator may run, over all jobs.
CREATE VIEW room_under_operator_caps AS
SELECT c.operator, greatest(0, c.cap - (SELECT count(*) FROM jobs j JOIN tasks t USING (job_id)
                                         WHERE j.capped_operator = c.operator
                                           AND t.status = 'Running')) AS room
  FROM operator_caps c;
