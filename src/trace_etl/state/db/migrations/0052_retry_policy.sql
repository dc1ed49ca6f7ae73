-- The retry policy of a job, and how long its tasks wait for an endpoint that does not answer.

-- `delay`, `max_delay`, `unreachable` in seconds. Without a value, the settings of the Dispatcher apply.
ALTER TABLE job_revisions ADD retry jsonb;
-- The start of the first of the last attempts that all failed because an endpoint did not answer.
ALTER TABLE tasks ADD unreachable_since timestamptz;

-- Whether a failed attempt is repeated because an endpoint did not answer, without counting it. An outage
-- ends by itself, so it is waited for much longer than other errors: six hours, unless the job says so.
CREATE FUNCTION waits_for_endpoint(t tasks, is_unreachable boolean) RETURNS boolean LANGUAGE sql STABLE
RETURN is_unreachable AND NOT t.cancel_requested
   AND now() - coalesce(t.unreachable_since, t.started_at, now()) < make_interval(secs => coalesce(
           (SELECT (r.retry ->> 'unreachable')::float8 FROM job_revisions r
             WHERE r.revision_id = t.revision_id), 21600));

-- When the next attempt of a failed task is due, or NULL if there is none. `retry_delay` is that of the
-- Dispatcher's settings, NULL if the failure must not be retried: policy/retry.py computes it. `uncounted`
-- attempts, which could not begin, are allowed on top. While an
-- endpoint does not answer, the delay is at most a minute.
CREATE FUNCTION next_attempt_of(
    t tasks, uncounted integer, retry_delay interval, is_unreachable boolean
) RETURNS timestamptz LANGUAGE sql VOLATILE
RETURN CASE
    WHEN waits_for_endpoint(t, is_unreachable) THEN now() + least(retry_delay, interval '1 minute')
    WHEN t.attempt < t.max_attempts + uncounted AND NOT t.cancel_requested THEN now() + coalesce(
        (SELECT make_interval(secs => least((r.retry ->> 'delay')::float8 * 2 ^ least(t.attempt - 1, 32),
                                            (r.retry ->> 'max_delay')::float8)
                                      * (0.5 + random()))
           FROM job_revisions r
          WHERE r.revision_id = t.revision_id AND jsonb_typeof(r.retry -> 'delay') = 'number'
            AND retry_delay > interval '0'),
        retry_delay)
    END;
DROP FUNCTION next_attempt_at(integer, integer, boolean, interval);
