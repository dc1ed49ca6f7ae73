-- A claim for several takes the oldest of a runtime that have no cap; it must not read those that
-- have one, of which any number may wait.
CREATE INDEX tasks_ready ON tasks (runtime, bulk, queued_at)
 WHERE status = 'Queued' AND max_concurrency IS NULL;
-- While some jobs are paused or capped it asks each job for what it has of the runtime, and must not
-- read what waits there for others. By the `||`, which a query must have just so, no other index
-- will do for it: where all tasks are of one runtime, the planner takes any for as good.
CREATE INDEX tasks_uncapped ON tasks (job_id, runtime, bulk, queued_at)
 WHERE '' || status = 'Queued' AND max_concurrency IS NULL;
CREATE INDEX tasks_capped ON tasks (job_id, runtime, bulk, queued_at)
 WHERE '' || status = 'Queued' AND max_concurrency IS NOT NULL;
