-- A claim for several tasks takes the oldest uncapped tasks of a runtime. It must not read capped
-- tasks, because any number of them may be queued.
CREATE INDEX tasks_ready ON tasks (runtime, bulk, queued_at)
 WHERE status = 'Queued' AND max_concurrency IS NULL;
-- While some jobs are paused or capped, the claim reads the tasks of the runtime job by job. It must not
-- read tasks of other runtimes. The index contains a `||`, which the query must repeat exactly. This
-- keeps the planner from using other indexes: if all tasks have the same runtime, it would consider
-- every index equally good.
CREATE INDEX tasks_uncapped ON tasks (job_id, runtime, bulk, queued_at)
 WHERE '' || status = 'Queued' AND max_concurrency IS NULL;
CREATE INDEX tasks_capped ON tasks (job_id, runtime, bulk, queued_at)
 WHERE '' || status = 'Queued' AND max_concurrency IS NOT NULL;
