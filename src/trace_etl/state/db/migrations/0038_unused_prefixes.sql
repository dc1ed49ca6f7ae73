-- Storage that nothing refers to, and when it may be deleted. Rows are written by the transaction that
-- makes a prefix unused, so no listing of the object store is needed to find it.

-- The number of objects under the prefix of a partition. One file and its marker is the usual case.
ALTER TABLE partitions ADD object_count integer NOT NULL DEFAULT 2;

CREATE TABLE unused_prefixes (
    prefix           text PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('superseded', 'uncommitted', 'scratch', 'exports')),
    org_id           uuid NOT NULL,
    scheme           text,  -- with `bucket`: of the partition; NULL: as the Dispatcher is configured
    bucket           text,
    dataset_uuid     uuid,
    dataset_version  uuid,
    task_id          uuid NOT NULL,
    attempt          integer NOT NULL,
    unused_since     timestamptz NOT NULL DEFAULT now(),
    unused_xid       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    objects          bigint,  -- NULL until measured
    bytes            bigint,
    held_until       timestamptz,
    CHECK ((objects IS NULL) = (bytes IS NULL))
);
CREATE INDEX unused_prefixes_kind ON unused_prefixes (kind, unused_since);
CREATE INDEX unused_prefixes_unmeasured ON unused_prefixes (unused_since) WHERE objects IS NULL;

-- Where attempts write the rows of a generation: like `generation_prefix` and `buffer_prefix` in
-- model/storage.py.
CREATE FUNCTION output_prefix(v dataset_versions) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE WHEN v.columns IS NULL
            THEN 'cold/datasets/' || v.dataset_uuid || '/' || v.dataset_version || '/'
            ELSE 'buffers/' || v.dataset_uuid || '/' END;

-- --- prefixes become unused -------------------------------------------------------------------

-- Several partitions may share a prefix. The sweeper checks that none of them still refers to it. The
-- partitions of a retired generation have been unused since it was retired.
CREATE FUNCTION note_superseded_prefix() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unused_prefixes (prefix, kind, org_id, scheme, bucket, dataset_uuid, dataset_version,
                                 task_id, attempt, objects, bytes, unused_since)
    SELECT OLD.storage_ref->>'prefix', 'superseded', d.org_id, OLD.storage_ref->>'scheme',
           OLD.storage_ref->>'bucket', d.dataset_uuid, OLD.dataset_version, OLD.task_id, OLD.attempt,
           OLD.object_count, OLD.byte_count, coalesce(v.abandoned_at, now())
      FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
     WHERE v.dataset_version = OLD.dataset_version AND OLD.storage_ref ? 'prefix'
    ON CONFLICT (prefix) DO UPDATE
       SET kind = 'superseded', unused_since = EXCLUDED.unused_since, unused_xid = pg_current_xact_id(),
           scheme = EXCLUDED.scheme, bucket = EXCLUDED.bucket, held_until = NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER partitions_replaced AFTER UPDATE OF storage_ref ON partitions
   FOR EACH ROW WHEN (OLD.storage_ref IS DISTINCT FROM NEW.storage_ref)
   EXECUTE FUNCTION note_superseded_prefix();
CREATE TRIGGER partitions_deleted AFTER DELETE ON partitions
   FOR EACH ROW EXECUTE FUNCTION note_superseded_prefix();

-- Attempts that failed after they had started. Inline operators write no objects, and outputs with
-- `update_strategy: append` are tables.
CREATE FUNCTION note_uncommitted_prefixes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unused_prefixes (prefix, kind, org_id, dataset_uuid, dataset_version, task_id, attempt)
    SELECT output_prefix(v) || NEW.task_id || '/' || NEW.attempt || '/', 'uncommitted', t.org_id,
           v.dataset_uuid, v.dataset_version, NEW.task_id, NEW.attempt
      FROM tasks t JOIN job_revisions r USING (revision_id) JOIN job_outputs o USING (revision_id)
      JOIN dataset_versions v ON v.dataset_version = o.dataset_version
     WHERE t.task_id = NEW.task_id AND t.runtime <> 'dispatcher'
       AND (r.update_strategy = 'replace' OR v.columns IS NOT NULL)
    ON CONFLICT (prefix) DO NOTHING;
    -- Batches may also lie under a prefix without the dataset: `short_buffer_prefix` in model/storage.py.
    INSERT INTO unused_prefixes (prefix, kind, org_id, task_id, attempt)
    SELECT 'buffers/' || NEW.task_id || '/' || NEW.attempt || '/', 'uncommitted', t.org_id, NEW.task_id,
           NEW.attempt
      FROM tasks t
     WHERE t.task_id = NEW.task_id AND EXISTS (
           SELECT FROM job_outputs o JOIN dataset_versions v USING (dataset_version)
            WHERE o.revision_id = t.revision_id AND v.columns IS NOT NULL)
    ON CONFLICT (prefix) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER task_attempts_uncommitted AFTER INSERT ON task_attempts
   FOR EACH ROW WHEN (NEW.outcome <> 'Completed' AND NEW.started_at IS NOT NULL)
   EXECUTE FUNCTION note_uncommitted_prefixes();

-- --- what keeps a prefix ----------------------------------------------------------------------

-- Whether an attempt may still write or commit. The attempts of a task that does not exist have ended. An
-- attempt that never started has no lease, and its number is used again when the task is requeued.
CREATE FUNCTION may_still_commit(of_task uuid, of_attempt integer) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM tasks t
     WHERE t.task_id = of_task
       AND (t.attempt < of_attempt
            OR (t.attempt = of_attempt
                AND (t.status IN ('Queued', 'Running') OR t.retry_at IS NOT NULL
                     OR t.lease_token IS NULL))));

-- Running tasks that pinned their inputs before the prefix became unused may read it.
CREATE FUNCTION may_be_pinned(u unused_prefixes) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM tasks t JOIN job_inputs i ON i.revision_id = t.revision_id
     WHERE t.status = 'Running' AND i.dataset_uuid = u.dataset_uuid
       AND pg_visible_in_snapshot(u.unused_xid, t.pinned_snapshot) IS NOT TRUE);

-- Why a prefix may not be deleted: NULL if nothing keeps it. `layout`: attempts of this release do not
-- write there, so it is not certain that the platform made it.
CREATE FUNCTION kept_by(u unused_prefixes) RETURNS text LANGUAGE sql STABLE
RETURN CASE
    WHEN u.prefix !~ ('^(cold/datasets/[0-9a-f-]{36}/[0-9a-f-]{36}|(buffers|scratch|exports)/[0-9a-f-]{36}|buffers)/'
                      || u.task_id || '/' || u.attempt || '/$') THEN 'layout'
    WHEN EXISTS (SELECT FROM partitions p
                  WHERE p.task_id = u.task_id AND p.storage_ref->>'prefix' = u.prefix) THEN 'partition'
    WHEN may_still_commit(u.task_id, u.attempt) THEN 'attempt'
    WHEN u.dataset_uuid IS NOT NULL AND may_be_pinned(u) THEN 'pin' END;

-- --- retired generations ----------------------------------------------------------------------

-- Generations that are current, are being built, or would be restored by a rollback.
CREATE VIEW used_generations AS
SELECT dataset_version FROM datasets WHERE dataset_version IS NOT NULL
 UNION
SELECT building_version FROM datasets WHERE building_version IS NOT NULL
 UNION
SELECT o.dataset_version
  FROM dags g
 CROSS JOIN LATERAL (
       SELECT r.previous_version FROM rollouts r
        WHERE r.dag_id = g.dag_id AND r.dag_version = g.dag_version
          AND r.state IN ('building', 'complete')
        ORDER BY r.started_at DESC LIMIT 1) r
  JOIN dag_version_jobs m ON m.dag_version = r.previous_version
  JOIN job_outputs o ON o.revision_id = m.revision_id;

-- The rows of a generation are deleted in batches. If the generation comes back meanwhile, the rest is
-- deleted first: a generation is whole or empty.
ALTER TABLE dataset_versions
    ADD sweep_started_at  timestamptz,
    ADD swept_at          timestamptz,
    ADD CHECK (swept_at IS NULL OR sweep_started_at IS NOT NULL);
CREATE INDEX dataset_versions_retired ON dataset_versions (abandoned_at)
    WHERE abandoned_at IS NOT NULL AND swept_at IS NULL;

CREATE FUNCTION is_unfinished(t tasks) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN t.status IN ('Queued', 'Running') OR t.retry_at IS NOT NULL;

-- Why the rows of a retired generation may not be deleted: NULL if nothing keeps them. A task that started
-- before the generation was found unused may have pinned it.
CREATE FUNCTION retired_kept_by(v dataset_versions) RETURNS text LANGUAGE sql STABLE
RETURN CASE
    WHEN EXISTS (
        SELECT FROM datasets d JOIN tasks t ON t.job_id = d.job_id
          JOIN job_revisions r ON r.revision_id = t.revision_id
         WHERE d.dataset_uuid = v.dataset_uuid AND r.generation_hash = v.generation_hash
           AND is_unfinished(t)) THEN 'attempt'
    WHEN EXISTS (
        SELECT FROM job_inputs i JOIN job_revisions r ON r.revision_id = i.revision_id
          JOIN tasks t ON t.job_id = r.job_id AND t.revision_id = r.revision_id
         WHERE i.dataset_uuid = v.dataset_uuid AND is_unfinished(t)
           AND (v.dataset_version IN (t.dataset_version, i.dataset_version)
                OR (i.dataset_version IS NULL AND t.started_at <= v.abandoned_at))) THEN 'pin'
    WHEN EXISTS (
        SELECT FROM committed_inputs l JOIN dataset_versions o ON o.dataset_version = l.dataset_version
         WHERE l.input_version = v.dataset_version
           AND (o.dataset_uuid, o.generation_hash) <> (v.dataset_uuid, v.generation_hash))
        THEN 'lineage' END;

-- --- written batches --------------------------------------------------------------------------

ALTER TABLE buffer_publishes ADD swept_at timestamptz, ADD CHECK (swept_at IS NULL OR sunk_at IS NOT NULL);
CREATE INDEX buffer_publishes_unswept ON buffer_publishes (sunk_at)
    WHERE sunk_at IS NOT NULL AND swept_at IS NULL;

-- --- listings ---------------------------------------------------------------------------------

-- Prefixes under which the platform writes, one row each. A slow loop lists them to find objects that no
-- row refers to.
CREATE VIEW storage_areas AS
SELECT DISTINCT output_prefix(v) AS prefix, d.org_id, d.dataset_uuid,
       CASE WHEN v.columns IS NULL THEN v.dataset_version END AS dataset_version,
       CASE WHEN v.columns IS NULL THEN 'cold' ELSE 'buffers' END AS area
  FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
 UNION ALL
SELECT a.area || '/' || o.org_id || '/', o.org_id, NULL, NULL, a.area
  FROM orgs o CROSS JOIN unnest(ARRAY['scratch', 'exports']) AS a (area);

CREATE TABLE storage_listings (
    prefix           text PRIMARY KEY,
    held_until       timestamptz,
    listed_at        timestamptz,
    objects          bigint NOT NULL DEFAULT 0,
    bytes            bigint NOT NULL DEFAULT 0,
    foreign_objects  bigint NOT NULL DEFAULT 0,  -- the platform did not write them, so it keeps them
    foreign_bytes    bigint NOT NULL DEFAULT 0
);

-- --- names ------------------------------------------------------------------------------------

-- The name of a dataset for people: published, buffered, or `dag.job.output`.
CREATE VIEW dataset_names AS
SELECT d.dataset_uuid, d.org_id,
       coalesce(n.name, d.buffer_name, concat_ws('.', g.name, j.name, d.output_name)) AS dataset
  FROM datasets d
  LEFT JOIN publications n ON n.dataset_uuid = d.dataset_uuid
  LEFT JOIN jobs j ON j.job_id = d.job_id
  LEFT JOIN dags g ON g.dag_id = j.dag_id;

-- Unused prefixes, the artifacts of batches and the partitions of retired generations, for people. A committed
-- prefix is not unused: its attempt completed late. A batch that is not written is kept for its delivery.
CREATE VIEW unused_storage AS
SELECT u.prefix AS key, u.kind, u.org_id, n.dataset, u.objects, u.bytes, u.unused_since,
       kept_by(u) AS kept_by
  FROM unused_prefixes u LEFT JOIN dataset_names n USING (dataset_uuid)
 WHERE NOT EXISTS (SELECT FROM partitions p
                    WHERE p.task_id = u.task_id AND p.storage_ref->>'prefix' = u.prefix)
 UNION ALL
SELECT b.batch_uri, 'batches', b.org_id, n.dataset, 1, b.batch_size_bytes,
       coalesce(b.sunk_at, b.failed_at, b.accepted_at),
       CASE WHEN b.sunk_at IS NULL THEN 'delivery' END
  FROM buffer_publishes b JOIN dataset_names n USING (dataset_uuid)
 WHERE b.swept_at IS NULL
 UNION ALL
SELECT DISTINCT ON (p.dataset_version, p.task_id, p.attempt)
       p.storage_ref->>'prefix', 'retired', n.org_id, n.dataset, p.object_count, p.byte_count,
       v.abandoned_at, v.kept_by
  FROM (SELECT v.*, retired_kept_by(v) AS kept_by FROM dataset_versions v
         WHERE v.abandoned_at IS NOT NULL AND v.swept_at IS NULL) v
  JOIN dataset_names n USING (dataset_uuid)
  JOIN partitions p ON p.dataset_version = v.dataset_version
 WHERE p.storage_ref ? 'prefix';
