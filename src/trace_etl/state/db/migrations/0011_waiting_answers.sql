-- Queued reruns because of invalidations: another rewrite of the same scope needs no second rerun.
CREATE INDEX tasks_waiting_answers ON tasks (job_id, partition_key)
 WHERE status = 'Queued' AND invalidation_id IS NOT NULL;
