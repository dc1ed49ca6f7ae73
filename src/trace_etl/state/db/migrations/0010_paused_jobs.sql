-- Every claim for several tasks checks whether any job is paused.
CREATE INDEX jobs_paused ON jobs (job_id) WHERE paused_at IS NOT NULL OR bulk_paused_at IS NOT NULL;
