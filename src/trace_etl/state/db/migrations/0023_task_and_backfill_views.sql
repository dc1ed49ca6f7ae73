-- Views and functions that several statements about tasks, the outbox and backfills share.

-- --- tasks ------------------------------------------------------------------------------------

-- Each task as the API returns it, with the facts that explain why it is not running.
CREATE VIEW task_details AS
SELECT t.org_id, t.task_id, g.name AS dag, j.name AS job, r.operator, t.runtime, t.status, t.attempt,
       t.max_attempts, t.partition_key, t.cursor_value AS cursor, t.worker_id, t.created_at,
       t.queued_at, t.started_at, t.finished_at, t.retry_at, t.cancel_requested, t.error_code,
       t.error_message, t.max_concurrency,
       coalesce(j.paused_at, CASE WHEN t.bulk THEN j.bulk_paused_at END) AS paused_at,
       coalesce(j.paused_by, CASE WHEN t.bulk THEN j.bulk_paused_by END) AS paused_by,
       CASE WHEN t.max_concurrency IS NULL OR t.status <> 'Queued' THEN 0
            ELSE (SELECT count(*) FROM tasks o WHERE o.job_id = t.job_id AND o.status = 'Running')
        END AS running_in_job,
       c.cap AS operator_cap,
       CASE WHEN c.cap IS NULL OR t.status <> 'Queued' THEN 0
            ELSE (SELECT count(*) FROM jobs oj JOIN tasks o USING (job_id)
                   WHERE oj.capped_operator = c.operator AND o.status = 'Running')
        END AS running_of_operator
  FROM tasks t
  JOIN jobs j ON j.job_id = t.job_id
  JOIN dags g ON g.dag_id = j.dag_id
  JOIN job_revisions r ON r.revision_id = t.revision_id
  LEFT JOIN operator_caps c ON c.operator = j.capped_operator;

-- --- outbox -----------------------------------------------------------------------------------

-- Each outbox row with the org of its subject. The rows are short-lived and hold no org themselves.
-- The view has one table, so that it can be updated.
CREATE VIEW outbox_with_org AS
SELECT o.outbox_id, o.kind, o.target, o.subject, o.tries, o.next_try_at, o.failed_at, o.last_error,
       o.created_at,
       coalesce((SELECT t.org_id FROM tasks t WHERE t.task_id = o.subject),
                (SELECT e.org_id FROM events e WHERE e.event_id = o.subject),
                (SELECT j.org_id FROM jobs j WHERE j.job_id = o.subject),
                (SELECT b.org_id FROM buffer_publishes b WHERE b.publish_id = o.subject),
                (SELECT i.org_id FROM invalidations i WHERE i.invalidation_id = o.subject)
       ) AS org_id
  FROM outbox o;

-- --- always_on sources ------------------------------------------------------------------------

-- The generations of always_on sources that need a running task: live or being built, and not paused
-- by a user. `is_held` is true while backpressure pauses the job.
CREATE VIEW always_on_sources AS
SELECT DISTINCT ON (j.job_id, r.generation_hash)
       j.org_id, j.job_id, r.revision_id, r.generation_hash, r.runtime, r.priority = 'bulk' AS bulk,
       r.heartbeat_timeout_seconds, is_paused(j, r.priority = 'bulk') AS is_held
  FROM job_revisions r
  JOIN jobs j ON j.job_id = r.job_id AND r.revision_id IN (j.revision_id, j.building_revision_id)
 WHERE r.source ->> 'kind' = 'always_on' AND j.active
   AND NOT EXISTS (SELECT FROM pauses p WHERE p.job_id = j.job_id AND p.by_job_id IS NULL
                      AND (p.tier = 'normal' OR r.priority = 'bulk'))
 ORDER BY j.job_id, r.generation_hash, r.revision_id = j.revision_id;

-- The tasks of always_on sources, one per generation. `wanted_revision` is the revision that the task
-- must run, or null if it must not run.
CREATE VIEW always_on_tasks AS
SELECT t.task_id, t.job_id, t.revision_id, t.status, t.attempt, t.finished_at,
       w.revision_id AS wanted_revision
  FROM (SELECT DISTINCT r.job_id, r.generation_hash FROM job_revisions r
         WHERE r.source ->> 'kind' = 'always_on') k
  JOIN tasks t ON t.job_id = k.job_id AND t.dedupe_key = 'always_on:' || k.generation_hash
  LEFT JOIN always_on_sources w
    ON w.job_id = k.job_id AND w.generation_hash = k.generation_hash;

-- The sources whose task may start now: no task of the same job still runs that must stop.
CREATE VIEW startable_sources AS
SELECT s.org_id, s.job_id, s.revision_id, s.generation_hash, s.runtime, s.bulk,
       s.heartbeat_timeout_seconds
  FROM always_on_sources s
 WHERE NOT s.is_held
   AND NOT EXISTS (SELECT FROM always_on_tasks o
                    WHERE o.job_id = s.job_id AND o.status = 'Running'
                      AND o.wanted_revision IS NULL);

-- --- backfills --------------------------------------------------------------------------------

-- The tasks of the next pending chunks of a backfill. A task has the dedupe key that routing gives to
-- a task of the same scope, so that only one of the two is created. Each round of a rebuild has its own
-- key.
CREATE FUNCTION next_backfill_tasks(of_backfill uuid, max_tasks bigint)
RETURNS SETOF new_task LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT new_task(
               b.org_id, b.job_id, r.revision_id, r.runtime, true,
               concat_ws(':', b.dataset_uuid, b.dataset_version, b.generation_hash,
                         format('p:%s-%s', c.range_start, c.range_end),
                         CASE c.action WHEN 'rebuild'
                              THEN format('rewrite:%s:%s', b.backfill_id, b.rounds) END),
               r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
               b.dataset_uuid, b.dataset_version, format('%s-%s', c.range_start, c.range_end),
               c.range_start, c.range_end)
      FROM backfills b
      JOIN jobs j ON j.job_id = b.job_id
      JOIN job_revisions r ON r.revision_id = j.revision_id
     CROSS JOIN LATERAL (
           SELECT p.range_start, p.range_end, p.action FROM backfill_chunks p
            WHERE p.backfill_id = b.backfill_id AND p.state = 'pending'
            ORDER BY p.range_start LIMIT max_tasks) c
     WHERE b.backfill_id = of_backfill
     ORDER BY c.range_start;
END;

-- Each backfill with its progress. The rate is that of the last five minutes, because a backfill may
-- have been paused before.
CREATE VIEW backfill_progress AS
SELECT b.org_id, b.backfill_id, g.name AS dag, j.name AS job, b.range_start AS start,
       b.range_end AS "end", b.chunk, b.force, b.state, b.why, b.made_by, b.created_at, b.started_at,
       b.ended_at,
       CASE WHEN b.state = 'running' THEN coalesce(j.paused_by, j.bulk_paused_by) END AS paused_by,
       c.chunks, c.blocks_done, c.blocks_left, c.rows_done, c.recent_blocks,
       extract(epoch FROM least(coalesce(b.ended_at, now()) - b.started_at,
                                interval '5 minutes'))::float8 AS recent_seconds
  FROM backfills b
  JOIN jobs j ON j.job_id = b.job_id
  JOIN dags g ON g.dag_id = j.dag_id
 CROSS JOIN LATERAL (
       SELECT coalesce(jsonb_object_agg(s.state, s.n), '{}') AS chunks,
              coalesce(sum(s.blocks) FILTER (WHERE s.state = 'completed'), 0)::bigint
                  AS blocks_done,
              coalesce(sum(s.blocks) FILTER (WHERE s.state IN ('pending', 'created')), 0)::bigint
                  AS blocks_left,
              coalesce(sum(s.row_count) FILTER (WHERE s.state = 'completed'), 0)::bigint
                  AS rows_done,
              coalesce(sum(s.recent_blocks), 0)::bigint AS recent_blocks
         FROM (SELECT k.state, count(*) AS n, sum(k.range_end - k.range_start + 1) AS blocks,
                      sum(k.row_count) AS row_count,
                      sum(k.range_end - k.range_start + 1) FILTER (
                          WHERE k.state = 'completed'
                            AND k.settled_at > coalesce(b.ended_at, now()) - interval '5 minutes')
                          AS recent_blocks
                 FROM backfill_chunks k WHERE k.backfill_id = b.backfill_id GROUP BY k.state) s) c;
