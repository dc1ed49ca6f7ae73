-- The maximum number of concurrent attempts of an operator over all jobs, from the Dispatcher settings.
CREATE TABLE operator_caps (
    operator  text PRIMARY KEY,
    cap       integer NOT NULL CHECK (cap >= 1)
);

-- Set for jobs whose operator has a cap, so that claims need no other table.
ALTER TABLE jobs ADD capped_operator text;
CREATE INDEX jobs_capped_operator ON jobs (capped_operator) WHERE capped_operator IS NOT NULL;

-- A trigger sets the column, so that no deploy, swap or rollback can omit it.
CREATE FUNCTION note_operator() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.capped_operator := (
        SELECT c.operator FROM job_revisions r JOIN operator_caps c USING (operator)
         WHERE r.revision_id = NEW.revision_id);
    RETURN NEW;
END
$$;
CREATE TRIGGER jobs_operator BEFORE INSERT OR UPDATE OF revision_id ON jobs
   FOR EACH ROW EXECUTE FUNCTION note_operator();
