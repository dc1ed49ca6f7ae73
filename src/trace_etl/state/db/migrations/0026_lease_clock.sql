-- The last time at which a Dispatcher could record heartbeats. The lease reaper of any replica writes it
-- every second. A gap is an outage of Postgres state or of all Dispatchers.
CREATE TABLE lease_clock (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    seen_at  timestamptz NOT NULL DEFAULT now()
);
INSERT INTO lease_clock DEFAULT VALUES;
