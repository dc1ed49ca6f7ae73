-- `is_reorganisation` alone says whether the chain replaced blocks. The view has those that the reader of the
-- chain reported: a task that processes a rewrite has an invalidation of its own, and reports the same
-- reorganisation again.
CREATE OR REPLACE VIEW reorganisations AS
SELECT i.* FROM invalidations i JOIN tasks t ON t.task_id = i.task_id
 WHERE i.is_reorganisation AND i.range_start IS NOT NULL AND t.invalidation_id IS NULL;
COMMENT ON VIEW reorganisations IS 'What the readers of chains reported; rewrites because of it are left out';
