-- How far the attempts of a followed chain are behind its head, as they report it every few seconds.
CREATE TABLE chain_heads (
    task_id      uuid PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
    head         bigint NOT NULL,
    head_at      timestamptz NOT NULL,
    position     bigint,
    position_at  timestamptz,
    reported_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN chain_heads.head_at IS 'The time in the header of the head';
COMMENT ON COLUMN chain_heads.position IS 'The last block in the hot tables; NULL: none';
COMMENT ON COLUMN chain_heads.position_at IS 'The time in the header of that block; NULL: unknown';
