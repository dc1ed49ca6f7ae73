-- A retry of a task finds the chunks of backfills that have this task.
CREATE INDEX backfill_chunks_task ON backfill_chunks (task_id) WHERE state IN ('created', 'failed');
