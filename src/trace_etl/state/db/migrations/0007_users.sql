-- Users and roles. A token identifies the caller; only these rows say what the caller may do.
CREATE TABLE users (
    name        text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_.@-]{0,127}$'),
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- A user may belong to several orgs, with a role in each. Each org disables its members separately.
CREATE TABLE memberships (
    org_id       uuid NOT NULL REFERENCES orgs,
    user_name    text NOT NULL REFERENCES users,
    role         text NOT NULL CHECK (role IN ('reader', 'writer', 'admin')),
    added_at     timestamptz NOT NULL DEFAULT now(),
    disabled_at  timestamptz,
    PRIMARY KEY (org_id, user_name)
);

INSERT INTO users (name) VALUES ('local');
INSERT INTO memberships (org_id, user_name, role)
VALUES ('00000000-0000-0000-0000-000000000001', 'local', 'admin');

-- The Query Service reads the same rows.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT SELECT ON memberships TO trace_reader;
    END IF;
END
$$;
