-- The number of ended tasks of each job, without counting all of them: a sum up to a transaction, and
-- the changes since then, in the order of the change stream.
CREATE TABLE task_tallies (
    job_id  uuid NOT NULL,
    status  text NOT NULL,
    n       bigint NOT NULL,
    PRIMARY KEY (job_id, status)
);
CREATE TABLE task_tally_marks (
    org_id      uuid PRIMARY KEY REFERENCES orgs,
    counted_to  xid8 NOT NULL
);
-- Tasks that are no longer ended, with the transaction in which they had ended.
CREATE TABLE task_tally_corrections (
    correction_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id         uuid NOT NULL,
    job_id         uuid NOT NULL,
    status         text NOT NULL,
    changed_xid    xid8 NOT NULL
);
CREATE INDEX task_tally_corrections_org ON task_tally_corrections (org_id, changed_xid);

-- Triggers record the corrections, so that no statement can omit one. The usual lifecycle of a task
-- never fires these triggers.
CREATE FUNCTION note_task_correction() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO task_tally_corrections (org_id, job_id, status, changed_xid)
    VALUES (OLD.org_id, OLD.job_id, OLD.status, OLD.changed_xid);
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_not_ended AFTER UPDATE OF status, cancel_requested ON tasks
   FOR EACH ROW WHEN (OLD.status IN ('Completed', 'Failed', 'Canceled')
                      AND OLD.changed_xid <> NEW.changed_xid)
   EXECUTE FUNCTION note_task_correction();
CREATE TRIGGER tasks_uncounted AFTER DELETE ON tasks
   FOR EACH ROW WHEN (OLD.status IN ('Completed', 'Failed', 'Canceled'))
   EXECUTE FUNCTION note_task_correction();

-- Invalidations that retention may delete, oldest first.
CREATE INDEX invalidations_routed ON invalidations (made_at) WHERE routed_at IS NOT NULL;

-- DAGs that a user paused as a whole: jobs that are added later are paused too.
CREATE TABLE dag_pauses (
    dag_id   uuid PRIMARY KEY REFERENCES dags,
    by_name  text NOT NULL,
    tier     text NOT NULL CHECK (tier IN ('bulk', 'normal')),
    reason   text NOT NULL
);
