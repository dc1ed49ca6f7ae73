-- Output of attempts, in parts. `position` is the number of bytes before the part.
CREATE TABLE attempt_logs (
    task_id    uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    attempt    integer NOT NULL,
    position   integer NOT NULL,
    text       text NOT NULL,
    logged_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_id, attempt, position)
);
