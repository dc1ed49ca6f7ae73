-- Failed tasks of a job, for retries on request. Few tasks fail, so the index stays small.
CREATE INDEX tasks_failed ON tasks (job_id, error_code) WHERE status = 'Failed';

-- Failed tasks with the names of their DAG and job. `is_retired`: the DAG no longer has the definition that
-- the task was created from, so no job reads what a retry would make.
CREATE VIEW failed_tasks AS
SELECT t.task_id, t.org_id, g.name AS dag, j.name AS job, t.partition_key, t.cursor_value AS cursor,
       t.attempt, t.error_code, t.error_message, t.retry_at,
       EXISTS (SELECT FROM unwanted_tasks u WHERE u.task_id = t.task_id) AS is_retired
  FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
 WHERE t.status = 'Failed';
