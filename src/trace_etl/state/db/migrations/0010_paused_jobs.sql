-- Whether anybody is paused is asked by every claim for several tasks.
CREATE INDEX jobs_paused ON jobs (job_id) WHERE paused_at IS NOT NULL OR bulk_paused_at IS NOT NULL;
