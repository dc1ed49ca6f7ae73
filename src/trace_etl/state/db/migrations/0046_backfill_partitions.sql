-- Whether each chunk of a backfill must end with a partition of every output.
ALTER TABLE backfills ADD keeps_partitions boolean NOT NULL DEFAULT false;

-- Whether an output of a task has no partition in the blocks of the task. Buffered outputs have none.
CREATE FUNCTION lacks_partition(t tasks)
RETURNS boolean LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM job_outputs o
          JOIN datasets d ON d.dataset_uuid = o.dataset_uuid AND d.buffer_name IS NULL
          JOIN dataset_versions v ON v.dataset_version = o.dataset_version
         WHERE o.revision_id = t.revision_id
           AND NOT EXISTS (
               SELECT FROM partitions p
                WHERE p.dataset_version = v.dataset_version
                  AND overlaps_blocks(p, v.generation_no, t.range_start, t.range_end)));
END;
