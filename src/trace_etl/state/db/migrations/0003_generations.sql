-- Two generations side by side: the current one, and one that is built until it is complete.

ALTER TABLE jobs ADD building_revision_id uuid REFERENCES job_revisions;
ALTER TABLE datasets ADD building_version uuid REFERENCES dataset_versions;

-- The generation that an edge inside a DAG reads. It is fixed, because the hash of the revision
-- contains it. NULL is an edge across DAGs, which reads the current generation.
ALTER TABLE job_inputs ADD dataset_version uuid REFERENCES dataset_versions;
UPDATE job_inputs i SET dataset_version = d.dataset_version
  FROM jobs j, datasets d JOIN jobs producer ON producer.job_id = d.job_id
 WHERE j.revision_id = i.revision_id AND d.dataset_uuid = i.dataset_uuid
   AND producer.dag_id = j.dag_id;

-- The whole definition of a job. A deploy plan compares it with the next definition.
ALTER TABLE job_revisions
    ADD definition  jsonb,
    ADD bootstrap   jsonb,
    ADD secrets     text[] NOT NULL DEFAULT '{}',
    ADD udf         jsonb;

ALTER TABLE publications
    ADD storage     text NOT NULL DEFAULT 'parquet' CHECK (storage IN ('parquet', 'postgres')),
    ADD write_mode  text NOT NULL DEFAULT 'replace'
                    CHECK (write_mode IN ('replace', 'append', 'buffered')),
    ADD columns     jsonb;

-- The revision of each job in a version of the DAG, and the names that the version publishes. A
-- rollback needs both, and does not parse the text again.
CREATE TABLE dag_version_jobs (
    dag_version  uuid NOT NULL REFERENCES dag_versions,
    job_id       uuid NOT NULL REFERENCES jobs,
    revision_id  uuid NOT NULL REFERENCES job_revisions,
    PRIMARY KEY (dag_version, job_id)
);
ALTER TABLE dag_versions ADD publications jsonb NOT NULL DEFAULT '[]';
INSERT INTO dag_version_jobs (dag_version, job_id, revision_id)
SELECT g.dag_version, j.job_id, j.revision_id FROM dags g JOIN jobs j USING (dag_id)
 WHERE g.dag_version IS NOT NULL AND j.active AND j.revision_id IS NOT NULL;
UPDATE dag_versions v SET publications = found.entries
  FROM dags g CROSS JOIN LATERAL (
       SELECT coalesce(jsonb_agg(jsonb_build_object(
                  'name', p.name, 'dataset_uuid', p.dataset_uuid, 'description', p.description,
                  'storage', p.storage, 'write_mode', p.write_mode, 'columns', p.columns)), '[]')
              AS entries
         FROM publications p JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
        WHERE j.dag_id = g.dag_id) found
 WHERE v.dag_version = g.dag_version;

CREATE TABLE rollouts (
    rollout_id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    dag_id            uuid NOT NULL REFERENCES dags,
    dag_version       uuid NOT NULL REFERENCES dag_versions,
    previous_version  uuid REFERENCES dag_versions,
    state             text NOT NULL
                      CHECK (state IN ('building', 'complete', 'rolled_back', 'superseded')),
    started_at        timestamptz NOT NULL DEFAULT now(),
    ended_at          timestamptz,
    CHECK ((state = 'building') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX rollouts_one_building ON rollouts (dag_id) WHERE state = 'building';
CREATE INDEX rollouts_of_dag ON rollouts (dag_id, started_at DESC);

-- Each row pairs an old generation (`from_version`) with the new one (`to_version`) that must cover it
-- before the pointers of a rollout move. If a published name moves to another output, the two
-- generations belong to different datasets.
CREATE TABLE rollout_targets (
    rollout_id    uuid NOT NULL REFERENCES rollouts,
    dataset_uuid  uuid NOT NULL REFERENCES datasets,
    from_version  uuid NOT NULL REFERENCES dataset_versions,
    to_version    uuid NOT NULL REFERENCES dataset_versions,
    PRIMARY KEY (rollout_id, dataset_uuid, from_version)
);

-- `abandoned`: the task was canceled or asked to stop because its definition was retired. The task is
-- requeued if a later version of the DAG has the definition again.
ALTER TABLE tasks ADD abandoned boolean NOT NULL DEFAULT false;
CREATE INDEX tasks_unsuccessful ON tasks (job_id) WHERE status IN ('Failed', 'Canceled');

-- To list the scopes of datasets that have no partitions.
CREATE INDEX events_version ON events (dataset_version, scope_key);
