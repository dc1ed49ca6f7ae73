-- Who may query a published dataset, where its newest rows are, and a record of every query.

-- Null: every role of the organisation may query it.
ALTER TABLE publications
    ADD read_roles        text[] CHECK (read_roles <@ ARRAY['reader', 'writer', 'admin']
                                        AND cardinality(read_roles) > 0),
    ADD hot_dataset_uuid  uuid REFERENCES datasets;
ALTER TYPE publication_entry
    ADD ATTRIBUTE read_roles text[],
    ADD ATTRIBUTE hot_dataset_uuid uuid;

-- One row for each query, answered or refused. The text of a query is never stored.
CREATE TABLE query_audit (
    query_id     uuid PRIMARY KEY,
    asked_at     timestamptz NOT NULL,
    org_id       uuid NOT NULL,
    user_name    text,
    task_id      uuid,
    attempt      integer,
    outcome      text NOT NULL,
    datasets     jsonb NOT NULL DEFAULT '[]',
    row_count    bigint NOT NULL DEFAULT 0,
    byte_count   bigint NOT NULL DEFAULT 0,
    elapsed_ms   double precision NOT NULL
);
CREATE INDEX query_audit_listing ON query_audit (org_id, asked_at DESC, query_id DESC);
CREATE INDEX query_audit_age ON query_audit (asked_at);

-- The Query Service adds rows. It can neither read nor change them.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT INSERT ON query_audit TO trace_reader;
    END IF;
END
$$;
