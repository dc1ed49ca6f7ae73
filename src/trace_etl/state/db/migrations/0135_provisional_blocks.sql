-- Why a task wrote rows. A task that processes a rewrite has the reason of the task that rewrote.
CREATE OR REPLACE FUNCTION reason_of_task(of_task uuid, is_rewrite boolean) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    t    tasks;
    i    invalidations;
    bulk boolean;
BEGIN
    FOR step IN 1..100 LOOP
        SELECT * INTO t FROM tasks WHERE task_id = of_task;
        SELECT * INTO i FROM invalidations WHERE invalidation_id = t.invalidation_id;
        EXIT WHEN i.invalidation_id IS NULL;
        IF i.once_key IS NULL OR i.once_key NOT LIKE 'rewritten:%' THEN
            RETURN reason_of_invalidation(i);
        END IF;
        of_task := i.task_id;
        is_rewrite := true;
    END LOOP;
    -- Bulk work of a job with normal priority is a backfill, or follows from one.
    bulk := t.bulk AND (SELECT priority <> 'bulk' FROM job_revisions WHERE revision_id = t.revision_id);
    RETURN CASE WHEN t.dedupe_key LIKE 'rebuild:%' THEN 'repair'
                -- Provisional blocks were read again, and the chain had dropped them.
                WHEN t.dedupe_key LIKE 'recheck:%' AND is_rewrite THEN 'reorganisation'
                WHEN bulk AND is_rewrite THEN 'rebuild'
                WHEN bulk THEN 'backfill'
                WHEN t.is_refresh THEN 'refresh'
                WHEN is_rewrite THEN 'rebuild'
                ELSE 'new' END;
END
$$;
