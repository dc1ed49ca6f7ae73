-- The tables of the Dispatcher. Migrations only go forward: later changes are new files.

CREATE TABLE orgs (
    org_id      uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- --- definitions ------------------------------------------------------------------------------

CREATE TABLE dags (
    dag_id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id       uuid NOT NULL REFERENCES orgs,
    name         text NOT NULL,
    dag_version  uuid,
    deployed_at  timestamptz,
    CONSTRAINT dags_name_per_org UNIQUE (org_id, name)
);

-- Immutable: the same text has the same version.
CREATE TABLE dag_versions (
    dag_version  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    dag_id       uuid NOT NULL REFERENCES dags,
    text_sha256  bytea NOT NULL,
    text         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT dag_versions_text UNIQUE (dag_id, text_sha256)
);
ALTER TABLE dags ADD FOREIGN KEY (dag_version) REFERENCES dag_versions;

CREATE TABLE jobs (
    job_id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id       uuid NOT NULL REFERENCES orgs,
    dag_id       uuid NOT NULL REFERENCES dags,
    name         text NOT NULL,
    revision_id  uuid,
    active       boolean NOT NULL DEFAULT true,
    paused_at    timestamptz,
    paused_by    text,
    CONSTRAINT jobs_name_per_dag UNIQUE (dag_id, name),
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);

-- Immutable definitions of jobs. A task keeps the revision with which it was created.
CREATE TABLE job_revisions (
    revision_id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    job_id                     uuid NOT NULL REFERENCES jobs,
    definition_hash            text NOT NULL,
    generation_hash            text NOT NULL,
    activation                 text NOT NULL CHECK (activation IN ('source', 'reactive')),
    runtime                    text NOT NULL,
    operator                   text NOT NULL,
    config                     jsonb NOT NULL,
    source                     jsonb,
    execution_strategy         text NOT NULL CHECK (execution_strategy IN ('PerPartition', 'PerUpdate')),
    update_strategy            text NOT NULL CHECK (update_strategy IN ('replace', 'append')),
    unique_key                 text[] NOT NULL DEFAULT '{}',
    max_attempts               integer NOT NULL CHECK (max_attempts >= 1),
    timeout_seconds            integer NOT NULL CHECK (timeout_seconds >= 1),
    heartbeat_timeout_seconds  integer NOT NULL CHECK (heartbeat_timeout_seconds >= 1),
    priority                   text NOT NULL CHECK (priority IN ('normal', 'bulk')),
    max_concurrency            integer CHECK (max_concurrency >= 1),
    max_queue_depth            integer CHECK (max_queue_depth >= 1),
    max_queue_age              integer CHECK (max_queue_age >= 1),
    CONSTRAINT job_revisions_definition UNIQUE (job_id, definition_hash)
);
ALTER TABLE jobs ADD FOREIGN KEY (revision_id) REFERENCES job_revisions;

CREATE TABLE datasets (
    dataset_uuid     uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id           uuid NOT NULL REFERENCES orgs,
    job_id           uuid NOT NULL REFERENCES jobs,
    output_name      text NOT NULL,
    dataset_version  uuid,
    CONSTRAINT datasets_output_per_job UNIQUE (job_id, output_name)
);

-- A generation of a dataset. It changes with the definition of its producer, not with every write.
CREATE TABLE dataset_versions (
    dataset_version  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    dataset_uuid     uuid NOT NULL REFERENCES datasets,
    generation_no    integer GENERATED ALWAYS AS IDENTITY,
    generation_hash  text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT dataset_versions_generation UNIQUE (dataset_uuid, generation_hash)
);
ALTER TABLE datasets ADD FOREIGN KEY (dataset_version) REFERENCES dataset_versions;

CREATE TABLE publications (
    org_id        uuid NOT NULL REFERENCES orgs,
    name          text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    dataset_uuid  uuid NOT NULL REFERENCES datasets,
    description   text NOT NULL DEFAULT '',
    CONSTRAINT publications_name_per_org PRIMARY KEY (org_id, name)
);
CREATE UNIQUE INDEX publications_dataset ON publications (dataset_uuid);

CREATE TABLE job_inputs (
    revision_id      uuid NOT NULL REFERENCES job_revisions,
    input_index      integer NOT NULL,
    name             text NOT NULL,
    dataset_uuid     uuid NOT NULL REFERENCES datasets,
    where_map        jsonb,
    PRIMARY KEY (revision_id, input_index)
);
CREATE INDEX job_inputs_dataset ON job_inputs (dataset_uuid);

CREATE TABLE job_outputs (
    revision_id      uuid NOT NULL REFERENCES job_revisions,
    output_index     integer NOT NULL,
    name             text NOT NULL,
    dataset_uuid     uuid NOT NULL REFERENCES datasets,
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    PRIMARY KEY (revision_id, output_index)
);

-- --- work -------------------------------------------------------------------------------------

CREATE TABLE tasks (
    task_id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id            uuid NOT NULL,
    job_id            uuid NOT NULL,
    revision_id       uuid NOT NULL,
    runtime           text NOT NULL,
    bulk              boolean NOT NULL DEFAULT false,
    dedupe_key        text NOT NULL,
    dataset_uuid      uuid,
    dataset_version   uuid,
    partition_key     text,
    range_start       bigint,
    range_end         bigint,
    cursor_value      bigint,
    status            text NOT NULL DEFAULT 'Queued'
                      CHECK (status IN ('Queued', 'Running', 'Completed', 'Failed', 'Canceled')),
    attempt           integer NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    max_attempts      integer NOT NULL,
    max_concurrency   integer,
    timeout_seconds   integer NOT NULL,
    lease_seconds     integer NOT NULL,
    lease_token       uuid,
    lease_expires_at  timestamptz,
    deadline_at       timestamptz,
    worker_id         text,
    cancel_requested  boolean NOT NULL DEFAULT false,
    completion_hash   bytea,
    cause             text,
    error_code        text,
    error_message     text,
    created_at        timestamptz NOT NULL DEFAULT now(),
    queued_at         timestamptz NOT NULL DEFAULT now(),
    started_at        timestamptz,
    finished_at       timestamptz,
    retry_at          timestamptz,
    CONSTRAINT tasks_dedupe UNIQUE (job_id, dedupe_key),
    CONSTRAINT tasks_running_has_a_lease
        CHECK (status <> 'Running' OR (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)),
    CONSTRAINT tasks_queued_has_no_lease CHECK (status <> 'Queued' OR lease_token IS NULL),
    CONSTRAINT tasks_only_failed_wait_for_a_retry CHECK (retry_at IS NULL OR status = 'Failed')
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Scans read live rows only, so history does not slow them down.
CREATE INDEX tasks_queued ON tasks (runtime, bulk, queued_at) WHERE status = 'Queued';
CREATE INDEX tasks_running_lease ON tasks (lease_expires_at) WHERE status = 'Running';
CREATE INDEX tasks_running_deadline ON tasks (deadline_at) WHERE status = 'Running';
CREATE INDEX tasks_retry ON tasks (retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX tasks_live_job ON tasks (job_id, status, queued_at) WHERE status IN ('Queued', 'Running');
CREATE INDEX tasks_listing ON tasks (org_id, created_at DESC, task_id DESC);
CREATE INDEX tasks_finished ON tasks (finished_at) WHERE finished_at IS NOT NULL;

-- One row for each ended attempt.
CREATE TABLE task_attempts (
    task_id        uuid NOT NULL,
    attempt        integer NOT NULL,
    worker_id      text,
    started_at     timestamptz,
    ended_at       timestamptz NOT NULL DEFAULT now(),
    outcome        text NOT NULL CHECK (outcome IN ('Completed', 'Failed', 'Canceled')),
    cause          text,
    error_code     text,
    error_message  text,
    PRIMARY KEY (task_id, attempt)
);

CREATE TABLE events (
    event_id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id            uuid NOT NULL,
    dataset_uuid      uuid NOT NULL,
    dataset_version   uuid NOT NULL,
    scope_key         text NOT NULL,
    partition_key     text,
    range_start       bigint,
    range_end         bigint,
    cursor_value      bigint,
    producer_task_id  uuid NOT NULL,
    attempt           integer NOT NULL,
    accepted_at       timestamptz NOT NULL DEFAULT now(),
    routed_at         timestamptz,
    CONSTRAINT events_once UNIQUE (producer_task_id, dataset_uuid, dataset_version, scope_key)
);
CREATE INDEX events_accepted ON events (accepted_at);

-- The pointer from a partition to the attempt prefix that holds its rows.
CREATE TABLE partitions (
    dataset_version  uuid NOT NULL REFERENCES dataset_versions,
    generation_no    integer NOT NULL,
    partition_key    text NOT NULL,
    range_start      bigint,
    range_end        bigint,
    storage_ref      jsonb NOT NULL,
    row_count        bigint NOT NULL,
    byte_count       bigint NOT NULL,
    columns          jsonb NOT NULL,
    task_id          uuid NOT NULL,
    attempt          integer NOT NULL,
    committed_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_version, partition_key),
    CHECK ((range_start IS NULL) = (range_end IS NULL) AND range_start <= range_end),
    -- No block is in two partitions of one generation, so no row is read twice. A degenerate box
    -- (generation, start)-(generation, end) needs only the built-in GiST, without an extension.
    CONSTRAINT partitions_do_not_overlap EXCLUDE USING gist (
        box(point(generation_no, range_start), point(generation_no, range_end)) WITH &&
    )
);

-- Side effects of a transaction, recorded by that transaction and executed after its commit.
CREATE TABLE outbox (
    outbox_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('wake_up', 'route_event', 'run_inline', 'wake_next', 'buffer_message')),
    target       text NOT NULL DEFAULT '',
    subject      uuid NOT NULL,
    body         jsonb,
    tries        integer NOT NULL DEFAULT 0,
    next_try_at  timestamptz NOT NULL DEFAULT now(),
    failed_at    timestamptz,
    last_error   text,
    created_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX outbox_due ON outbox (next_try_at, outbox_id) WHERE failed_at IS NULL;

CREATE TABLE buffer_publishes (
    publish_id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id            uuid NOT NULL,
    task_id           uuid NOT NULL,
    attempt           integer NOT NULL,
    dataset_uuid      uuid NOT NULL,
    dataset_version   uuid NOT NULL,
    batch_uri         text NOT NULL,
    content_type      text NOT NULL,
    record_count      bigint,
    batch_size_bytes  bigint,
    accepted_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT buffer_publishes_once UNIQUE (task_id, attempt, dataset_uuid, batch_uri)
);

INSERT INTO orgs (org_id, name) VALUES ('00000000-0000-0000-0000-000000000001', 'local');

-- The Query Service pins partitions and reads nothing else.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_reader') THEN
        GRANT SELECT ON orgs, datasets, dataset_versions, publications, partitions TO trace_reader;
    END IF;
END
$$;
