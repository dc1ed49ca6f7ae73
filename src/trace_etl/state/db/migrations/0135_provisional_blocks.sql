-- Why a task wrote rows. If a recheck of provisional blocks writes other rows, the chain had dropped them, and
-- a task that processes this rewrite has the same reason.
ALTER FUNCTION reason_of_task RENAME TO reason_apart_from_rechecks;

CREATE FUNCTION reason_of_task(of_task uuid, is_rewrite boolean) RETURNS text LANGUAGE sql STABLE BEGIN ATOMIC
    WITH RECURSIVE rewriters (task_id, depth) AS (
        SELECT of_task, 1
         UNION ALL
        SELECT i.task_id, r.depth + 1
          FROM rewriters r JOIN tasks t USING (task_id) JOIN invalidations i USING (invalidation_id)
         WHERE i.once_key LIKE 'rewritten:%' AND r.depth < 100
    )
    SELECT CASE WHEN EXISTS (SELECT FROM rewriters r JOIN tasks t USING (task_id)
                              WHERE t.dedupe_key LIKE 'recheck:%' AND (is_rewrite OR r.depth > 1))
                THEN 'reorganisation'
                ELSE reason_apart_from_rechecks(of_task, is_rewrite) END;
END;
