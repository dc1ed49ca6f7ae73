-- One row per followed chain and generation: the attempt that may write, its position, and the
-- announced cursor. The row is the fence: every batch locks it and checks the attempt.
CREATE TABLE followers (
    stream            uuid PRIMARY KEY,
    task_id           uuid NOT NULL,
    attempt           integer NOT NULL CHECK (attempt >= 1),
    chain_id          bigint NOT NULL,
    number            bigint CHECK (number >= 0),
    hash              bytea CHECK (octet_length(hash) = 32),
    finalized         bigint NOT NULL DEFAULT -1,
    announced         bigint,
    reorganisations   bigint NOT NULL DEFAULT 0,
    deepest           bigint NOT NULL DEFAULT 0,
    updated_at        timestamptz NOT NULL DEFAULT now(),
    CHECK ((number IS NULL) = (hash IS NULL))
);

-- Hashes of written blocks that are not final yet, to detect reorganisations.
CREATE TABLE follower_trail (
    stream  uuid NOT NULL REFERENCES followers ON DELETE CASCADE,
    number  bigint NOT NULL,
    hash    bytea NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (stream, number)
);

-- Tasks that were replaced by another task and may never write again.
CREATE TABLE follower_past_tasks (
    stream   uuid NOT NULL REFERENCES followers ON DELETE CASCADE,
    task_id  uuid NOT NULL,
    PRIMARY KEY (stream, task_id)
);

-- Rewritten ranges that were not yet announced to the Dispatcher.
CREATE TABLE follower_rewrites (
    rewrite_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream       uuid NOT NULL REFERENCES followers ON DELETE CASCADE,
    range_start  bigint NOT NULL,
    range_end    bigint NOT NULL,
    reason       text NOT NULL,
    CHECK (range_start <= range_end)
);
CREATE INDEX follower_rewrites_stream ON follower_rewrites (stream, rewrite_id);
