-- Buffered datasets belong to a name, not to a job: several jobs and DAGs write to one dataset.

ALTER TABLE datasets
    ALTER job_id DROP NOT NULL,
    ADD buffer_name text,
    ADD CONSTRAINT datasets_buffer_per_org UNIQUE (org_id, buffer_name),
    ADD CONSTRAINT datasets_of_a_job_or_a_name CHECK ((job_id IS NULL) = (buffer_name IS NOT NULL));

-- The columns and the key that every batch of a buffered generation must have.
ALTER TABLE dataset_versions
    ADD columns     jsonb,
    ADD unique_key  text[],
    ADD CHECK ((columns IS NULL) = (unique_key IS NULL));

UPDATE datasets d SET job_id = NULL, buffer_name = p.name
  FROM publications p WHERE p.dataset_uuid = d.dataset_uuid AND p.write_mode = 'buffered';
UPDATE dataset_versions v SET columns = p.columns, unique_key = r.unique_key
  FROM publications p JOIN job_outputs o USING (dataset_uuid) JOIN job_revisions r USING (revision_id)
 WHERE p.write_mode = 'buffered' AND p.columns IS NOT NULL AND v.dataset_version = o.dataset_version;

CREATE INDEX job_outputs_dataset ON job_outputs (dataset_uuid);

-- The producers of a dataset: its own job, or all jobs that publish its name as buffered.
CREATE VIEW dataset_producers AS
SELECT dataset_uuid, job_id, output_name FROM datasets WHERE job_id IS NOT NULL
 UNION ALL
SELECT DISTINCT d.dataset_uuid, j.job_id, o.name
  FROM datasets d JOIN job_outputs o USING (dataset_uuid) JOIN job_revisions r USING (revision_id)
  JOIN jobs j ON j.job_id = r.job_id AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id)
 WHERE d.job_id IS NULL;

-- The result of a batch: its rows are in the table, or the reason why they are not.
ALTER TABLE buffer_publishes
    ADD publish_no     bigint GENERATED ALWAYS AS IDENTITY,
    ADD sunk_at        timestamptz,
    ADD row_count      bigint,
    ADD cursor_value   bigint,
    ADD failed_at      timestamptz,
    ADD error_code     text,
    ADD error_message  text,
    ADD CHECK (sunk_at IS NULL OR failed_at IS NULL),
    ADD CHECK ((sunk_at IS NULL) = (row_count IS NULL)),
    ADD CHECK ((failed_at IS NULL) = (error_code IS NULL));
CREATE INDEX buffer_publishes_dataset ON buffer_publishes (dataset_uuid, publish_no DESC);
CREATE INDEX buffer_publishes_sunk ON buffer_publishes (sunk_at) WHERE sunk_at IS NOT NULL;
