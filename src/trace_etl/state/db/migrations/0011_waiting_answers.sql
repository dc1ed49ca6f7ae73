-- Answers to invalidations that still wait: another rewrite of the same scope needs no other.
CREATE INDEX tasks_waiting_answers ON tasks (job_id, partition_key)
 WHERE status = 'Queued' AND invalidation_id IS NOT NULL;
