-- Which attempt of a task last wrote to a table that rows are appended to: an older one may not.
CREATE TABLE append_fences (
    dataset_version  uuid NOT NULL,
    task_id          uuid NOT NULL,
    attempt          integer NOT NULL,
    updated_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_version, task_id)
);
CREATE INDEX append_fences_updated ON append_fences (updated_at);
