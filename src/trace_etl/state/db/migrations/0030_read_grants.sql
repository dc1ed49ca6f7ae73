-- The inputs of tasks that pin too many partitions for a capability token. The token carries the SHA-256 of
-- the document instead. Rows are shared by all tasks with the same inputs and deleted after their retention.
CREATE TABLE read_grants (
    sha256    text PRIMARY KEY,
    document  text NOT NULL,
    used_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX read_grants_used ON read_grants (used_at);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT SELECT ON read_grants TO trace_reader;
    END IF;
END
$$;
