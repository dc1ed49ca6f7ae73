-- Two generations at once: one that readers see, one that is built beside it until it is complete.

ALTER TABLE jobs ADD building_revision_id uuid REFERENCES job_revisions;
ALTER TABLE datasets ADD building_version uuid REFERENCES dataset_versions;

-- The generation an edge inside a DAG reads: the revision's own hash contains it, so it is fixed.
-- NULL: an edge across DAGs, which reads whatever is current.
ALTER TABLE job_inputs ADD dataset_version uuid REFERENCES dataset_versions;
UPDATE job_inputs i SET dataset_version = d.dataset_version
  FROM jobs j, datasets d JOIN jobs producer ON producer.job_id = d.job_id
 WHERE j.revision_id = i.revision_id AND d.dataset_uuid = i.dataset_uuid
   AND producer.dag_id = j.dag_id;

-- What a definition said, whole: a plan compares it with what the next one says.
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

-- Which revision each job has in a version of the DAG, and what the version publishes: enough to go
-- back to it without reading its text again.
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

-- What must be covered before a rollout's pointers move, and what covers it. The dataset differs
-- from the old generation's own when a published name moves to another output.
CREATE TABLE rollout_targets (
    rollout_id    uuid NOT NULL REFERENCES rollouts,
    dataset_uuid  uuid NOT NULL REFERENCES datasets,
    from_version  uuid NOT NULL REFERENCES dataset_versions,
    to_version    uuid NOT NULL REFERENCES dataset_versions,
    PRIMARY KEY (rollout_id, dataset_uuid, from_version)
);

-- Canceled, or told to stop, because its definition was given up; wanted again if that comes back.
ALTER TABLE tasks ADD abandoned boolean NOT NULL DEFAULT false;
CREATE INDEX tasks_unsuccessful ON tasks (job_id) WHERE status IN ('Failed', 'Canceled');

-- The scopes that a dataset without partitions has.
CREATE INDEX events_version ON events (dataset_version, scope_key);
