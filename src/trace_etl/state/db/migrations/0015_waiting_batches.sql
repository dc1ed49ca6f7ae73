-- The message of a waiting batch is sent again, with growing delays, until it is written or failed.
ALTER TABLE buffer_publishes
    ADD ask_again_at timestamptz NOT NULL DEFAULT now() + interval '10 minutes';
CREATE INDEX buffer_publishes_waiting ON buffer_publishes (ask_again_at)
 WHERE sunk_at IS NULL AND failed_at IS NULL;
