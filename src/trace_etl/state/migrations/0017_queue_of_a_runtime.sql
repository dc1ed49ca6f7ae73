-- A claim for several asks jobs for what they have of a runtime, and those with a cap apart: it must
-- not read what waits in them for others. By the `||`, which a query must have just so, no other
-- index will do for it: where all tasks are of one runtime, the planner takes any for as good.
CREATE INDEX tasks_of_runtime ON tasks (job_id, runtime, bulk, queued_at)
 WHERE '' || status = 'Queued';
CREATE INDEX tasks_capped ON tasks (job_id, runtime, bulk, queued_at)
 WHERE '' || status = 'Queued' AND max_concurrency IS NOT NULL;
