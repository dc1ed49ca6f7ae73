-- Whether a request to cancel tasks chooses a task of a job: it waits, runs or will be retried, and matches
-- every field that the request has. A follower is chosen by its id only, because it would be started again;
-- pausing its job stops it.
CREATE FUNCTION is_chosen_to_cancel(
    t tasks, dag text, job text, task_ids uuid[], of_dag text, of_job text, with_status text, with_error text
) RETURNS boolean LANGUAGE sql STABLE
RETURN NOT t.cancel_requested
   AND (t.status IN ('Queued', 'Running') OR t.retry_at IS NOT NULL)
   AND (task_ids IS NULL OR t.task_id = ANY(task_ids))
   AND (task_ids IS NOT NULL OR t.dedupe_key NOT LIKE 'always_on:%')
   AND (of_dag IS NULL OR dag = of_dag)
   AND (of_job IS NULL OR job = of_job)
   AND (with_status IS NULL OR t.status = with_status)
   AND (with_error IS NULL OR t.error_code = with_error);
