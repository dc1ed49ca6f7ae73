-- The change stream. Frequent changes (tasks, partitions) are read from their own rows, in the order
-- of the transactions that changed them. Rare changes get a row in this table.

-- A row shows only its newest change: if it changes twice between two reads, the reader sees one change.
ALTER TABLE tasks ADD changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX tasks_changes ON tasks (org_id, changed_xid, task_id);

-- A trigger records the change, so that no statement can omit it.
CREATE FUNCTION note_task_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    RETURN NEW;
END
$$;
CREATE TRIGGER tasks_changed BEFORE UPDATE OF status, cancel_requested ON tasks
   FOR EACH ROW WHEN (OLD.status <> NEW.status OR OLD.cancel_requested <> NEW.cancel_requested)
   EXECUTE FUNCTION note_task_change();

ALTER TABLE partitions ADD COLUMN IF NOT EXISTS
    commit_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX IF NOT EXISTS partitions_commit
    ON partitions (dataset_version, commit_xid, partition_key);

CREATE SEQUENCE change_numbers;
CREATE TABLE changes (
    -- A number in the form of the other keys, so that changes of one transaction keep their order.
    change_id    uuid PRIMARY KEY
                 DEFAULT lpad(to_hex(nextval('change_numbers')), 32, '0')::uuid,
    org_id       uuid NOT NULL,
    changed_xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind         text NOT NULL CHECK (kind IN ('deploy', 'rollout', 'pause')),
    dag          text NOT NULL,
    job          text,
    body         jsonb NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX changes_order ON changes (org_id, changed_xid, change_id);
CREATE INDEX changes_age ON changes (changed_at);

CREATE FUNCTION note_deploy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (org_id, kind, dag, body)
    VALUES (NEW.org_id, 'deploy', NEW.name, jsonb_build_object(
        'dag_version', NEW.dag_version, 'deployed_at', NEW.deployed_at));
    RETURN NULL;
END
$$;
CREATE TRIGGER dags_deployed AFTER INSERT OR UPDATE OF dag_version ON dags
   FOR EACH ROW WHEN (NEW.dag_version IS NOT NULL) EXECUTE FUNCTION note_deploy();

CREATE FUNCTION note_rollout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO changes (org_id, kind, dag, body)
    SELECT org_id, 'rollout', name, jsonb_build_object(
               'rollout_id', NEW.rollout_id, 'state', NEW.state, 'dag_version', NEW.dag_version)
      FROM dags WHERE dag_id = NEW.dag_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER rollouts_changed AFTER INSERT OR UPDATE OF state ON rollouts
   FOR EACH ROW EXECUTE FUNCTION note_rollout();

CREATE FUNCTION note_pause() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    told pauses := coalesce(NEW, OLD);
BEGIN
    INSERT INTO changes (org_id, kind, dag, job, body)
    SELECT j.org_id, 'pause', g.name, j.name, jsonb_build_object(
               'paused', TG_OP <> 'DELETE', 'tier', told.tier, 'by', told.by_name,
               'reason', told.reason)
      FROM jobs j JOIN dags g USING (dag_id) WHERE j.job_id = told.job_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER pauses_changed AFTER INSERT OR UPDATE OF tier OR DELETE ON pauses
   FOR EACH ROW EXECUTE FUNCTION note_pause();

-- The position up to which retention has deleted the stream. A reader that asks for older changes gets
-- an error.
CREATE TABLE change_horizon (
    changed_xid  xid8 NOT NULL
);
INSERT INTO change_horizon VALUES ('0');

CREATE FUNCTION note_forgotten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE change_horizon h SET changed_xid = f.changed_xid
      FROM (SELECT changed_xid FROM forgotten ORDER BY changed_xid DESC LIMIT 1) f
     WHERE h.changed_xid < f.changed_xid;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_forgotten AFTER DELETE ON tasks REFERENCING OLD TABLE AS forgotten
   FOR EACH STATEMENT EXECUTE FUNCTION note_forgotten();
CREATE TRIGGER changes_forgotten AFTER DELETE ON changes REFERENCING OLD TABLE AS forgotten
   FOR EACH STATEMENT EXECUTE FUNCTION note_forgotten();
