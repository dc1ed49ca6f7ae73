-- Backpressure: queues that are too long or too old, the upstream jobs that are paused because of
-- them, and the events that these jobs receive when they resume.

-- A queue over its limit. Level 1 pauses bulk work upstream, level 2 all work.
CREATE TABLE trips (
    job_id       uuid PRIMARY KEY REFERENCES jobs,
    level        smallint NOT NULL CHECK (level IN (1, 2)),
    reason       text NOT NULL CHECK (reason IN ('depth', 'age')),
    measured     bigint NOT NULL,
    threshold    bigint NOT NULL,
    since        timestamptz NOT NULL,
    level_since  timestamptz NOT NULL
);

-- A job is paused while it has a row here: `bulk` pauses its bulk tasks only, `normal` all tasks.
CREATE TABLE pauses (
    job_id     uuid NOT NULL REFERENCES jobs,
    by_job_id  uuid REFERENCES jobs,  -- the job whose queue is over its limit; NULL: a user paused the job
    by_name    text NOT NULL,
    tier       text NOT NULL CHECK (tier IN ('bulk', 'normal')),
    reason     text NOT NULL,
    since      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pauses_once UNIQUE NULLS NOT DISTINCT (job_id, by_job_id)
);

-- A summary of the rows above, so that claims need no other table. `bulk_paused_*` is set by a pause
-- of either tier.
ALTER TABLE jobs
    ADD bulk_paused_at  timestamptz,
    ADD bulk_paused_by  text,
    ADD CHECK ((bulk_paused_at IS NULL) = (bulk_paused_by IS NULL));

-- Events that were not routed to a paused job. They are routed when it resumes.
CREATE TABLE deferred_events (
    event_id     uuid NOT NULL REFERENCES events ON DELETE CASCADE,
    job_id       uuid NOT NULL REFERENCES jobs,
    bulk         boolean NOT NULL,
    deferred_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (event_id, job_id, bulk)
);
CREATE INDEX deferred_events_of_job ON deferred_events (job_id, bulk, deferred_at);

-- The outbox publisher has the list of kinds, so this table needs no second list.
ALTER TABLE outbox DROP CONSTRAINT outbox_kind_check;

-- Depth and age are measured separately for bulk and normal work.
DROP INDEX tasks_live_job;
CREATE INDEX tasks_live_job ON tasks (job_id, status, bulk, queued_at)
 WHERE status IN ('Queued', 'Running');
CREATE INDEX job_revisions_limited ON job_revisions (revision_id)
 WHERE max_queue_depth IS NOT NULL OR max_queue_age IS NOT NULL;
