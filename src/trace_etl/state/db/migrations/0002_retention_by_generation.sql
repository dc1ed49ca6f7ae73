-- Retention scans only the generations that are no longer read. Live generations keep their finished
-- tasks permanently, so a scan by age alone would grow with them.
DROP INDEX tasks_finished;
CREATE INDEX tasks_finished ON tasks (dataset_version, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX partitions_task ON partitions (task_id);
