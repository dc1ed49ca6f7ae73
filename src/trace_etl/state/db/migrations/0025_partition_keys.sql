-- Partitions whose key is not a block range stay separate. A task with such a key reads the partition with
-- the same key from each input. If an input has no such partition, the task reads the whole input.

-- Whether a task read only the partition with its own key from a generation. False after a rewrite of
-- that partition, because the snapshot of the task no longer shows what it contained.
CREATE FUNCTION reads_one_key(version uuid, t tasks) RETURNS boolean LANGUAGE sql STABLE
RETURN t.range_start IS NULL AND t.partition_key IS NOT NULL AND EXISTS (
    SELECT FROM partitions p
     WHERE p.dataset_version = version AND p.partition_key = t.partition_key
       AND pg_visible_in_snapshot(p.commit_xid, t.pinned_snapshot));

-- The input partitions of a task at this moment, in order: input index, dataset version, partition key,
-- first block, last block, storage.
CREATE FUNCTION pinned_inputs(
    of_revision uuid, trigger_dataset uuid, trigger_version uuid, first_block bigint,
    last_block bigint, of_key text
) RETURNS TABLE (pin json) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT json_build_array(i.input_index, v.dataset_version, p.partition_key, p.range_start,
                            p.range_end, p.storage_ref)
      FROM job_inputs i
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
      JOIN dataset_versions v
        ON v.dataset_version = input_generation(i, d, trigger_dataset, trigger_version)
      LEFT JOIN LATERAL (
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
      ) p ON true
     WHERE i.revision_id = of_revision
     ORDER BY i.input_index, p.range_start, p.partition_key;
END;

-- The columns of a task's payload. The statements that start tasks return the same columns.
CREATE OR REPLACE VIEW claimed_tasks AS
SELECT t.task_id, t.attempt, t.lease_token, t.lease_expires_at, t.org_id, t.revision_id,
       t.timeout_seconds, t.lease_seconds, t.dataset_uuid, t.dataset_version, t.partition_key,
       t.range_start, t.range_end, t.cursor_value, t.invalidation_id,
       (SELECT json_agg(pin) FROM pinned_inputs(t.revision_id, t.dataset_uuid, t.dataset_version,
                                                t.range_start, t.range_end, t.partition_key))::text
           AS pins,
       t.status
  FROM tasks t;
DROP FUNCTION IF EXISTS pinned_inputs(uuid, uuid, uuid, bigint, bigint);

-- The running tasks, because they may have pinned invalid partitions.
CREATE OR REPLACE FUNCTION rerun_scopes_of_running_tasks(ids uuid[])
RETURNS SETOF rerun_scope LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT r.invalidation_id, r.revision_id, t.partition_key, t.range_start, t.range_end,
           t.cursor_value
      FROM invalidation_readers(ids) r
      JOIN tasks t ON t.job_id = r.job_id AND t.status = 'Running'
      JOIN job_revisions own
        ON own.revision_id = t.revision_id AND own.generation_hash = r.generation_hash
     WHERE r.has_partitions
       AND scopes_overlap(t.range_start, t.range_end, r.range_start, r.range_end)
       AND NOT (r.range_start IS NULL AND t.partition_key <> r.partition_key
                AND reads_one_key(r.dataset_version, t)) IS TRUE;
END;
