-- The delivery logs of all published names as one table, for the Query Service. A compaction of a hot table
-- moves its rows to Parquet: readers of the name see the same rows as before.
CREATE VIEW dataset_changes AS
SELECT p.org_id, p.name AS dataset, d.dataset_uuid = p.hot_dataset_uuid AS is_table, d.number, d.kind,
       d.reason, d.partition_key, d.range_start, d.range_end, d.old_hash, d.new_hash, d.row_count,
       d.dataset_version, d.task_id, d.attempt, d.changed_at
  FROM publications p JOIN deliveries d ON d.dataset_uuid IN (p.dataset_uuid, p.hot_dataset_uuid)
 WHERE d.number IS NOT NULL
   AND NOT (d.kind = 'published' AND d.rows_from = p.hot_dataset_uuid) IS TRUE;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT SELECT ON dataset_changes, delivery_log TO trace_reader;
    END IF;
END
$$;
