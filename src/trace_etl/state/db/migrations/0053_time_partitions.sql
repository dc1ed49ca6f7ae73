-- Time partitions: a job with `partition_by` has one partition per day or hour of its inputs' rows.

CREATE TYPE mapped_partition AS (dataset_version uuid, partition_key text, time_keys text[]);

-- The blocks of a partition by its key; NULL for a key that is not a range.
CREATE FUNCTION blocks_of_key(key text) RETURNS int8range LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN key ~ '^\d{1,18}-\d{1,18}$' THEN
            int8range(split_part(key, '-', 1)::bigint, split_part(key, '-', 2)::bigint, '[]') END;
CREATE INDEX time_keys_blocks ON time_keys USING gist (blocks_of_key(input_key)) WHERE time_key = '';

-- Record which days or hours the rows of input partitions belong to, and request each partition that had or has
-- rows of them. Returns the new tasks. A task that read an older state than the recorded one changes nothing.
--
-- A partition of the input that no longer exists has no rows. It was replaced by partitions that share blocks with
-- it, so the mapping tasks of these find it. A task that processes an invalidation looks at all partitions.
CREATE FUNCTION record_time_keys(of_task uuid, reported mapped_partition[])
RETURNS SETOF tasks LANGUAGE plpgsql AS $$
DECLARE
    t         tasks;
    r         job_revisions;
    mapped    mapped_partition[];
    replaced  text[];
    affected  text[];
BEGIN
    SELECT * INTO STRICT t FROM tasks WHERE task_id = of_task;
    SELECT * INTO STRICT r FROM job_revisions WHERE revision_id = t.revision_id;
    PERFORM pg_advisory_xact_lock(hashtextextended(
        concat_ws(':', 'time_keys', t.job_id, r.generation_hash), 0));
    SELECT array_agg(f::mapped_partition) INTO mapped
      FROM unnest(reported) f
     WHERE NOT EXISTS (
           SELECT FROM time_keys k
            WHERE k.job_id = t.job_id AND k.generation_hash = r.generation_hash
              AND k.input_version = f.dataset_version AND k.input_key = f.partition_key
              AND k.time_key = '' AND read_later(k.read_snapshot, t.pinned_snapshot));
    SELECT array_agg(DISTINCT k.input_key) INTO replaced
      FROM time_keys k
     WHERE k.job_id = t.job_id AND k.generation_hash = r.generation_hash AND k.time_key = ''
       AND blocks_of_key(k.input_key) && blocks_of_key(t.partition_key)
       AND NOT EXISTS (SELECT FROM partitions p WHERE p.dataset_version = k.input_version
                          AND p.partition_key = k.input_key);
    WITH old AS (
        DELETE FROM time_keys k
         WHERE k.job_id = t.job_id AND k.generation_hash = r.generation_hash
           AND (EXISTS (SELECT FROM unnest(mapped) m
                         WHERE m.dataset_version = k.input_version
                           AND m.partition_key = k.input_key)
                OR ((k.input_key = ANY (replaced) OR t.invalidation_id IS NOT NULL)
                    AND NOT EXISTS (
                    SELECT FROM partitions p WHERE p.dataset_version = k.input_version
                       AND p.partition_key = k.input_key)))
        RETURNING k.time_key
    )
    SELECT array_agg(DISTINCT a.time_key) INTO affected
      FROM (SELECT o.time_key FROM old o
             UNION ALL
            SELECT unnest(m.time_keys) FROM unnest(mapped) m) a
     WHERE a.time_key <> '';
    INSERT INTO time_keys (job_id, generation_hash, input_version, input_key, time_key, read_snapshot)
    SELECT t.job_id, r.generation_hash, m.dataset_version, m.partition_key, v.time_key,
           t.pinned_snapshot
      FROM unnest(mapped) m
     CROSS JOIN LATERAL (SELECT unnest(m.time_keys) UNION SELECT '') v (time_key)
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT n.* FROM request_refreshes(ARRAY(
        SELECT new_task(t.org_id, t.job_id, t.revision_id, t.runtime, t.bulk, '', r.max_attempts,
                        r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds,
                        t.dataset_uuid, t.dataset_version, a.time_key)
          FROM unnest(affected) AS a (time_key))) n;
END
$$;
