-- Rewrites and invalidations, lineage of partitions, and positions of consumers.

-- --- order ------------------------------------------------------------------------------------

-- The snapshot in which the inputs of an attempt were pinned. The snapshots of a database are ordered:
-- a later snapshot sees everything that an earlier one sees. If two attempts wrote the same scope, the
-- output with the later snapshot is kept.
ALTER TABLE tasks
    ADD pinned_snapshot  pg_snapshot,
    ADD invalidation_id  uuid;

ALTER TABLE partitions
    ADD commit_xid     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ADD read_snapshot  pg_snapshot;
-- The reconciler reads partitions in commit order, after the last one that it has compared.
CREATE INDEX partitions_commit ON partitions (dataset_version, commit_xid, partition_key);

-- Whether the first snapshot was taken after the second. A transaction that ends between two snapshots
-- makes them differ: either it increases `xmax`, or it leaves the list of transactions in progress.
CREATE FUNCTION read_later(mine pg_snapshot, other pg_snapshot) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE WHEN mine IS NULL THEN false
         WHEN other IS NULL THEN true
         ELSE (pg_snapshot_xmax(mine), -(SELECT count(*) FROM pg_snapshot_xip(mine)))
            > (pg_snapshot_xmax(other), -(SELECT count(*) FROM pg_snapshot_xip(other)))
    END;

-- --- routing ----------------------------------------------------------------------------------

-- The consumers of a generation. An edge inside a DAG reads one generation, an edge across DAGs reads
-- the current one. A job that reads a dataset twice has two rows.
CREATE VIEW consumers AS
SELECT i.dataset_uuid, coalesce(i.dataset_version, d.dataset_version) AS dataset_version,
       j.org_id, j.job_id, r.revision_id, r.generation_hash, r.runtime, r.update_strategy,
       r.priority = 'bulk' OR r.revision_id = j.building_revision_id IS TRUE AS bulk,
       r.max_attempts, r.max_concurrency, r.timeout_seconds, r.heartbeat_timeout_seconds
  FROM job_inputs i
  JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
  JOIN job_revisions r ON r.revision_id = i.revision_id AND r.activation = 'reactive'
  JOIN jobs j ON j.job_id = r.job_id AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id);

-- The position of a consumer in a dataset with cursors. A new generation of the consumer has no
-- position at first, so it reads the dataset from the start.
CREATE TABLE consumer_cursors (
    job_id           uuid NOT NULL REFERENCES jobs,
    generation_hash  text NOT NULL,
    dataset_uuid     uuid NOT NULL REFERENCES datasets,
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    cursor_value     bigint NOT NULL,
    task_id          uuid NOT NULL,
    advanced_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, generation_hash, dataset_version)
);
CREATE INDEX consumer_cursors_dataset ON consumer_cursors (dataset_uuid);

-- The blocks that a `range_aggregator` has seen of each range, and the task that emitted the range.
CREATE TABLE aggregated_ranges (
    job_id           uuid NOT NULL REFERENCES jobs,
    generation_hash  text NOT NULL,
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    range_start      bigint NOT NULL,
    range_end        bigint NOT NULL,
    covered          int8multirange NOT NULL,
    emitted_by       uuid,
    PRIMARY KEY (job_id, generation_hash, dataset_version, range_start),
    CHECK (range_start <= range_end)
);

-- --- lineage ----------------------------------------------------------------------------------

-- The inputs of a partition. A row is valid while its task and attempt are those of the partition.
CREATE TABLE partition_inputs (
    dataset_version  uuid NOT NULL,
    partition_key    text NOT NULL,
    input_version    uuid NOT NULL REFERENCES dataset_versions,
    input_key        text NOT NULL,  -- '*': the whole input
    input_task_id    uuid,           -- NULL: the input was rewritten while the attempt ran
    input_attempt    integer,
    task_id          uuid NOT NULL,
    attempt          integer NOT NULL,
    PRIMARY KEY (dataset_version, partition_key, input_version, input_key)
);
CREATE INDEX partition_inputs_input ON partition_inputs (input_version, input_key);

-- --- invalidations ----------------------------------------------------------------------------

-- Scopes that were published and are no longer valid.
CREATE TABLE invalidations (
    invalidation_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id           uuid NOT NULL,
    dataset_uuid     uuid NOT NULL REFERENCES datasets,
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    kind             text NOT NULL CHECK (kind IN ('partition', 'row_range')),
    partition_key    text,
    range_start      bigint,
    range_end        bigint,
    filter           jsonb,
    reason           text NOT NULL DEFAULT '',
    made_by          text NOT NULL,  -- task:… or user:…
    task_id          uuid,
    attempt          integer,
    once_key         text,
    made_xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    made_at          timestamptz NOT NULL DEFAULT now(),
    routed_at        timestamptz,
    CONSTRAINT invalidations_once UNIQUE (task_id, dataset_version, once_key),
    CHECK ((range_start IS NULL) = (range_end IS NULL) AND range_start <= range_end),
    CHECK (kind = 'row_range' OR partition_key IS NOT NULL),
    CHECK (kind = 'partition' OR (range_start IS NOT NULL AND partition_key IS NULL))
);
CREATE INDEX invalidations_unrouted ON invalidations (made_at) WHERE routed_at IS NULL;
CREATE INDEX invalidations_dataset ON invalidations (dataset_uuid, made_at DESC);
CREATE INDEX invalidations_made ON invalidations (dataset_version, made_xid);

-- The task of a consumer for an invalidation. It is processed when its completion is accepted.
CREATE TABLE invalidation_consumers (
    invalidation_id  uuid NOT NULL REFERENCES invalidations ON DELETE CASCADE,
    job_id           uuid NOT NULL REFERENCES jobs,
    task_id          uuid NOT NULL,
    processed_at     timestamptz,
    PRIMARY KEY (invalidation_id, task_id)
);

-- --- reconciling ------------------------------------------------------------------------------

-- The position up to which each edge was compared: every earlier partition has its task.
CREATE TABLE reconciled_edges (
    job_id           uuid NOT NULL REFERENCES jobs,
    generation_hash  text NOT NULL,
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    commit_xid       xid8 NOT NULL,
    partition_key    text NOT NULL,
    PRIMARY KEY (job_id, generation_hash, dataset_version)
);
-- The time up to which every accepted event was routed.
CREATE TABLE reconciled_events (
    only_one     boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    accepted_at  timestamptz NOT NULL
);
INSERT INTO reconciled_events (accepted_at) VALUES ('-infinity');
