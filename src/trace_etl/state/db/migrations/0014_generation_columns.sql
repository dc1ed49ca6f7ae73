-- What a deploy found out about a generation before anything of it was written, and since when
-- nobody reads it any more.
ALTER TABLE dataset_versions
    ADD analysed_columns  jsonb,
    ADD abandoned_at      timestamptz;
