-- An upload that was replaced or expired stays until its object, if it left one, is deleted.
ALTER TABLE udf_uploads
    ADD COLUMN ended_at timestamptz,
    ADD COLUMN swept_at timestamptz;  -- when a sweeper took it; another one waits before it takes it too

CREATE INDEX udf_uploads_ended ON udf_uploads (ended_at) WHERE ended_at IS NOT NULL;
