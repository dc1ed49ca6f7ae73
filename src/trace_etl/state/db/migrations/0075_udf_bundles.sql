-- Bundles of user-defined functions. Their content is in the object store, named by its hash.
CREATE TABLE udf_bundles (
    org_id uuid NOT NULL REFERENCES orgs,
    name text NOT NULL,
    sha256 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint NOT NULL,
    file_count integer NOT NULL,
    pushed_by text NOT NULL,
    pushed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, name, sha256)
);

-- Uploads that are not finished. They are deleted with their parts after a day.
CREATE TABLE udf_uploads (
    upload_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs,
    name text NOT NULL,
    sha256 text NOT NULL,
    size_bytes bigint NOT NULL,
    pushed_by text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE udf_upload_parts (
    upload_id uuid NOT NULL REFERENCES udf_uploads ON DELETE CASCADE,
    part_number integer NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (upload_id, part_number)
);
