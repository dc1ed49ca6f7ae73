-- The jitter of a delay keeps the limits of a job: no delay is longer than `max_delay`.

-- A delay between half of `delay` and one and a half of it, both limited by `longest`.
CREATE FUNCTION spread_delay(delay float8, longest float8) RETURNS interval LANGUAGE sql VOLATILE
RETURN (SELECT make_interval(secs => d / 2 + random() * (least(d * 1.5, longest) - d / 2))
          FROM (VALUES (least(delay, longest))) AS limited (d));

-- When the next attempt of a failed task is due, or NULL if there is none. `retry_delay` is that of the
-- Dispatcher's settings, NULL if the failure must not be retried: policy/retry.py computes it. `uncounted`
-- attempts, which could not begin, are allowed on top. While an endpoint does not answer, the delay is at
-- most a minute.
CREATE OR REPLACE FUNCTION next_attempt_of(
    t tasks, uncounted integer, retry_delay interval, is_unreachable boolean
) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN CASE
    WHEN waits_for_endpoint(t, is_unreachable) THEN now() + least(retry_delay, interval '1 minute')
    WHEN t.attempt < t.max_attempts + uncounted AND NOT t.cancel_requested THEN now() + coalesce(
        (SELECT spread_delay((r.retry ->> 'delay')::float8 * 2 ^ least(t.attempt - 1, 32),
                             (r.retry ->> 'max_delay')::float8)
           FROM job_revisions r
          WHERE r.revision_id = t.revision_id AND jsonb_typeof(r.retry -> 'delay') = 'number'
            AND retry_delay > interval '0'),
        retry_delay)
    END;
