-- Certificates of partitions: the hashes of their rows and files, and what they were made from.

ALTER TABLE partitions
    ADD content_hash text,
    ADD row_sum      text,
    ADD files        jsonb,
    ADD revision_id  uuid,
    ADD dag_version  uuid;
COMMENT ON COLUMN partitions.content_hash IS
    'Hash of the rows in any order (proof/content_hash.py); NULL: written by an older release, or not Parquet';
COMMENT ON COLUMN partitions.row_sum IS 'Sum of the row hashes: that of a union is the sum of its parts';
COMMENT ON COLUMN partitions.files IS 'Name, rows, bytes and SHA-256 of each file, as its marker lists them';

-- For the whole input (`*`): the hash of the list of its partitions, see `hash_of_generation`.
ALTER TABLE partition_inputs ADD input_hash text;

-- The hash of all partitions of a generation that a snapshot shows: lines of key, space, content hash,
-- sorted by key. NULL if a partition is newer than the snapshot: it may have replaced one that was read.
CREATE FUNCTION hash_of_generation(version uuid, seen pg_snapshot) RETURNS text LANGUAGE sql STABLE
RETURN (
    SELECT CASE WHEN bool_and(pg_visible_in_snapshot(p.commit_xid, seen) AND p.content_hash IS NOT NULL)
                THEN 'partitions.v1:' || encode(sha256(convert_to(string_agg(
                         p.partition_key || ' ' || p.content_hash, E'\n'
                         ORDER BY p.partition_key COLLATE "C"), 'UTF8')), 'hex') END
      FROM partitions p WHERE p.dataset_version = version);

-- The inputs of a partition, with the names that people use.
CREATE FUNCTION inputs_of_partition(version uuid, key text) RETURNS jsonb LANGUAGE sql STABLE
RETURN (
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'dataset', n.dataset, 'dataset_version', l.input_version, 'partition_key', l.input_key,
               'content_hash', l.input_hash)
               ORDER BY n.dataset, length(l.input_key), l.input_key), '[]')
      FROM partition_inputs l
      JOIN dataset_versions v ON v.dataset_version = l.input_version
      JOIN dataset_names n ON n.dataset_uuid = v.dataset_uuid
     WHERE l.dataset_version = version AND l.partition_key = key);

-- What is certified of each committed partition.
CREATE VIEW partition_certificates AS
SELECT p.dataset_version, p.partition_key, p.range_start AS start, p.range_end AS "end", p.row_count,
       p.byte_count, p.columns, p.content_hash, p.row_sum, p.files, p.verified, p.storage_ref,
       p.task_id, p.attempt, p.committed_at,
       inputs_of_partition(p.dataset_version, p.partition_key) AS inputs,
       jsonb_build_object('operator', r.operator, 'definition_hash', r.definition_hash,
                          'generation_hash', v.generation_hash, 'dag_version', p.dag_version,
                          'config_hash', p.config_hash) AS definition
  FROM partitions p
  JOIN dataset_versions v ON v.dataset_version = p.dataset_version
  LEFT JOIN job_revisions r ON r.revision_id = p.revision_id;
