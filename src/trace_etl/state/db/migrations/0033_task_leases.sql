-- The lease of each task, for the Query Service: whether an attempt may still read. It has no lease token.
CREATE VIEW task_leases AS
SELECT task_id, org_id, attempt, status, cancel_requested, lease_expires_at > now() AS is_held
  FROM tasks;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT SELECT ON task_leases TO trace_reader;
    END IF;
END
$$;
