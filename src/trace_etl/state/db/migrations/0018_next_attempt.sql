-- The retry decision for a failed attempt: when the next attempt is due, or NULL if there is none.
-- `retry_delay` is NULL if the failure must not be retried; policy/retry.py computes it.
CREATE FUNCTION next_attempt_at(
    attempt integer, max_attempts integer, cancel_requested boolean, retry_delay interval
) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN CASE WHEN attempt < max_attempts AND NOT cancel_requested THEN now() + retry_delay END;
