-- The work of consumers for the data that their inputs already hold.

-- The inputs of every revision that reads events now: live, or being built.
CREATE VIEW consumer_inputs AS
SELECT j.org_id, j.job_id, r.revision_id, r.runtime, r.generation_hash, r.execution_strategy,
       r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
       i.dataset_uuid, input_generation(i, d) AS dataset_version,
       i.dataset_version IS NOT NULL AS is_inside_dag
  FROM job_revisions r
  JOIN jobs j ON j.job_id = r.job_id
  JOIN job_inputs i ON i.revision_id = r.revision_id
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
 WHERE r.activation = 'reactive' AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id);

-- The scopes that a generation holds: its committed partitions or, if it has none, the scopes of its
-- events. A consumer that runs per update needs only the last cursor. With `only_recent`, only recent
-- events are returned, because they may have been routed while pointers moved.
CREATE FUNCTION generation_scopes(version uuid, execution_strategy text, only_recent boolean)
RETURNS TABLE (scope_key text, partition_key text, range_start bigint, range_end bigint,
               cursor_value bigint, changed_at timestamptz)
LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT 'p:' || p.partition_key, p.partition_key, p.range_start, p.range_end, NULL::bigint,
           p.committed_at
      FROM partitions p WHERE p.dataset_version = version AND NOT only_recent
     UNION ALL
    SELECT e.scope_key, e.partition_key, e.range_start, e.range_end, e.cursor_value,
           NULL::timestamptz
      FROM events e
     WHERE e.dataset_version = version
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = version)
       AND (NOT only_recent OR e.accepted_at > now() - interval '10 minutes')
       AND (execution_strategy = 'PerPartition' OR e.cursor_value IS NULL
            OR e.cursor_value = (SELECT max(l.cursor_value) FROM events l
                                  WHERE l.dataset_version = version));
END;
