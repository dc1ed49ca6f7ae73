-- The tasks of a job's current definition that failed permanently.
CREATE VIEW job_failures AS
SELECT t.job_id, t.task_id, t.partition_key, t.error_code, t.error_message, t.finished_at
  FROM tasks t JOIN jobs j ON j.job_id = t.job_id
  JOIN job_revisions own ON own.revision_id = t.revision_id
  JOIN job_revisions live ON live.revision_id = j.revision_id
 WHERE t.status = 'Failed' AND t.retry_at IS NULL AND own.generation_hash = live.generation_hash;
