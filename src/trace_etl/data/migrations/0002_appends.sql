-- The attempt of a task that last wrote to an appended table. An older attempt may not write.
CREATE TABLE append_fences (
    dataset_version  uuid NOT NULL,
    task_id          uuid NOT NULL,
    attempt          integer NOT NULL,
    updated_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_version, task_id)
);
CREATE INDEX append_fences_updated ON append_fences (updated_at);
