-- The columns that a deploy found for a generation before any row was written, and the time since
-- which the generation is unused.
ALTER TABLE dataset_versions
    ADD analysed_columns  jsonb,
    ADD abandoned_at      timestamptz;
