-- One row per followed chain and generation: who writes it, how far it is, what was told.
-- The row is locked and checked in every batch's transaction: it is the fence.
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

-- The hashes of the blocks written and not yet final: what a reorganisation is found by.
CREATE TABLE follower_trail (
    stream  uuid NOT NULL REFERENCES followers ON DELETE CASCADE,
    number  bigint NOT NULL,
    hash    bytea NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (stream, number)
);

-- Tasks that were followed by another: they may never write again, however late they wake.
CREATE TABLE follower_past_tasks (
    stream   uuid NOT NULL REFERENCES followers ON DELETE CASCADE,
    task_id  uuid NOT NULL,
    PRIMARY KEY (stream, task_id)
);

-- Rewritten ranges that the Dispatcher has not heard of yet.
CREATE TABLE follower_rewrites (
    rewrite_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream       uuid NOT NULL REFERENCES followers ON DELETE CASCADE,
    range_start  bigint NOT NULL,
    range_end    bigint NOT NULL,
    reason       text NOT NULL,
    CHECK (range_start <= range_end)
);
CREATE INDEX follower_rewrites_stream ON follower_rewrites (stream, rewrite_id);
