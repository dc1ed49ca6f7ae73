-- A batch whose message was lost is asked for again, ever later, until it is written or has failed.
ALTER TABLE buffer_publishes
    ADD ask_again_at timestamptz NOT NULL DEFAULT now() + interval '10 minutes';
CREATE INDEX buffer_publishes_waiting ON buffer_publishes (ask_again_at)
 WHERE sunk_at IS NULL AND failed_at IS NULL;
