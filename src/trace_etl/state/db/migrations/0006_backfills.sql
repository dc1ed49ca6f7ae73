-- Backfills: a range of a job, split into chunks. One bulk task builds each chunk.

CREATE TABLE backfills (
    backfill_id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id           uuid NOT NULL REFERENCES orgs,
    job_id           uuid NOT NULL REFERENCES jobs,
    generation_hash  text NOT NULL,  -- the generation to fill; a redeploy that changes it ends the backfill
    dataset_uuid     uuid NOT NULL REFERENCES datasets,  -- the input dataset whose scopes the tasks process
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    range_start      bigint NOT NULL,
    range_end        bigint NOT NULL,
    chunk            bigint NOT NULL CHECK (chunk >= 1),
    force            boolean NOT NULL,
    state            text NOT NULL DEFAULT 'running'
                     CHECK (state IN ('running', 'complete', 'failed', 'canceled')),
    why              text NOT NULL DEFAULT '',
    rounds           integer NOT NULL DEFAULT 1,
    made_by          text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz NOT NULL DEFAULT now(),
    ended_at         timestamptz,
    CHECK (range_start <= range_end),
    CHECK ((state = 'running') = (ended_at IS NULL))
);
-- A repeated request for a running backfill returns that backfill.
CREATE UNIQUE INDEX backfills_running
    ON backfills (job_id, generation_hash, range_start, range_end, chunk, force)
 WHERE state = 'running';
CREATE INDEX backfills_listing ON backfills (org_id, created_at DESC, backfill_id DESC);
CREATE INDEX backfills_job ON backfills (job_id, created_at DESC);

CREATE TABLE backfill_chunks (
    backfill_id  uuid NOT NULL REFERENCES backfills ON DELETE CASCADE,
    range_start  bigint NOT NULL,
    range_end    bigint NOT NULL,
    action       text NOT NULL CHECK (action IN ('build', 'rebuild', 'there', 'no_input')),
    state        text NOT NULL
                 CHECK (state IN ('pending', 'created', 'completed', 'failed', 'canceled', 'skipped')),
    task_id      uuid,
    own          boolean NOT NULL DEFAULT false,  -- this backfill created or retried the task
    row_count    bigint,                          -- an estimate until the chunk is completed
    settled_at   timestamptz,
    PRIMARY KEY (backfill_id, range_start)
);
CREATE INDEX backfill_chunks_state ON backfill_chunks (backfill_id, state, range_start);
