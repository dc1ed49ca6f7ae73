-- The inputs of tasks that pin too many partitions for a capability token. The token carries the SHA-256 of
-- the document instead. Rows are shared by all tasks with the same inputs and deleted after their retention.
CREATE TABLE read_grants (
    sha256    text PRIMARY KEY,
    document  text NOT NULL,
    used_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX read_grants_used ON read_grants (used_at);

-- The inputs of a task at this moment, in order: input index, dataset version, published name, and the
-- partitions (key, first block, last block, storage), null if there are none.
CREATE OR REPLACE FUNCTION pinned_inputs(
    of_revision uuid, trigger_dataset uuid, trigger_version uuid, first_block bigint,
    last_block bigint, of_key text
) RETURNS TABLE (pin json) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT json_build_array(i.input_index, v.dataset_version, n.name, p.partitions)
      FROM job_inputs i
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
      JOIN dataset_versions v
        ON v.dataset_version = input_generation(i, d, trigger_dataset, trigger_version)
      LEFT JOIN publications n ON n.dataset_uuid = i.dataset_uuid
     CROSS JOIN LATERAL (
           SELECT json_agg(json_build_array(q.partition_key, q.range_start, q.range_end, q.storage_ref)
                           ORDER BY q.range_start, q.partition_key) AS partitions
             FROM (
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref FROM partitions q
                WHERE first_block IS NOT NULL AND q.dataset_version = v.dataset_version
                  AND overlaps_blocks(q, v.generation_no, first_block, last_block)
                UNION ALL
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref FROM partitions q
                WHERE first_block IS NULL AND of_key IS NOT NULL
                  AND q.dataset_version = v.dataset_version AND q.partition_key = of_key
                UNION ALL
               SELECT q.partition_key, q.range_start, q.range_end, q.storage_ref FROM partitions q
                WHERE first_block IS NULL AND q.dataset_version = v.dataset_version
                  AND NOT EXISTS (SELECT FROM partitions k
                                   WHERE k.dataset_version = v.dataset_version
                                     AND k.partition_key = of_key)
             ) q
      ) p
     WHERE i.revision_id = of_revision
     ORDER BY i.input_index;
END;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT SELECT ON read_grants TO trace_reader;
    END IF;
END
$$;
