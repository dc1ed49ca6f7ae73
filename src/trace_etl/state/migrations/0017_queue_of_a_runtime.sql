-- What waits in jobs with a cap of their own: a claim for several looks for it, and must not read
-- what waits in all the others.
CREATE INDEX tasks_capped ON tasks (job_id, runtime, bulk, queued_at)
 WHERE status = 'Queued' AND max_concurrency IS NOT NULL;
