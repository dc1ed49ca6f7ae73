SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE FUNCTION public.note_deploy() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO changes (org_id, kind, dag, body)
    VALUES (NEW.org_id, 'deploy', NEW.name, jsonb_build_object(
        'dag_version', NEW.dag_version, 'deployed_at', NEW.deployed_at));
    RETURN NULL;
END
$$;
ALTER FUNCTION public.note_deploy() OWNER TO trace_state;
CREATE FUNCTION public.note_forgotten() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE change_horizon h SET changed_xid = f.changed_xid
      FROM (SELECT changed_xid FROM forgotten ORDER BY changed_xid DESC LIMIT 1) f
     WHERE h.changed_xid < f.changed_xid;
    RETURN NULL;
END
$$;
ALTER FUNCTION public.note_forgotten() OWNER TO trace_state;
CREATE FUNCTION public.note_operator() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.capped_operator := (
        SELECT c.operator FROM job_revisions r JOIN operator_caps c USING (operator)
         WHERE r.revision_id = NEW.revision_id);
    RETURN NEW;
END
$$;
ALTER FUNCTION public.note_operator() OWNER TO trace_state;
CREATE FUNCTION public.note_pause() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    told pauses := coalesce(NEW, OLD);
BEGIN
    INSERT INTO changes (org_id, kind, dag, job, body)
    SELECT j.org_id, 'pause', g.name, j.name, jsonb_build_object(
               'paused', TG_OP <> 'DELETE', 'tier', told.tier, 'by', told.by_name,
               'reason', told.reason)
      FROM jobs j JOIN dags g USING (dag_id) WHERE j.job_id = told.job_id;
    RETURN NULL;
END
$$;
ALTER FUNCTION public.note_pause() OWNER TO trace_state;
CREATE FUNCTION public.note_rollout() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO changes (org_id, kind, dag, body)
    SELECT org_id, 'rollout', name, jsonb_build_object(
               'rollout_id', NEW.rollout_id, 'state', NEW.state, 'dag_version', NEW.dag_version)
      FROM dags WHERE dag_id = NEW.dag_id;
    RETURN NULL;
END
$$;
ALTER FUNCTION public.note_rollout() OWNER TO trace_state;
CREATE FUNCTION public.note_task_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id();
    RETURN NEW;
END
$$;
ALTER FUNCTION public.note_task_change() OWNER TO trace_state;
CREATE FUNCTION public.note_task_correction() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO task_tally_corrections (org_id, job_id, status, changed_xid)
    VALUES (OLD.org_id, OLD.job_id, OLD.status, OLD.changed_xid);
    RETURN NULL;
END
$$;
ALTER FUNCTION public.note_task_correction() OWNER TO trace_state;
CREATE FUNCTION public.read_later(mine pg_snapshot, other pg_snapshot) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (mine IS NULL) THEN false WHEN (other IS NULL) THEN true ELSE (ROW(pg_snapshot_xmax(mine), (- (SELECT count(*) AS count FROM pg_snapshot_xip(read_later.mine) pg_snapshot_xip(pg_snapshot_xip)))) > ROW(pg_snapshot_xmax(other), (- (SELECT count(*) AS count FROM pg_snapshot_xip(read_later.other) pg_snapshot_xip(pg_snapshot_xip))))) END;
ALTER FUNCTION public.read_later(mine pg_snapshot, other pg_snapshot) OWNER TO trace_state;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.aggregated_ranges (
    job_id uuid NOT NULL,
    generation_hash text NOT NULL,
    dataset_version uuid NOT NULL,
    range_start bigint NOT NULL,
    range_end bigint NOT NULL,
    covered int8multirange NOT NULL,
    emitted_by uuid,
    CONSTRAINT aggregated_ranges_check CHECK ((range_start <= range_end))
);
ALTER TABLE public.aggregated_ranges OWNER TO trace_state;
CREATE TABLE public.backfill_chunks (
    backfill_id uuid NOT NULL,
    range_start bigint NOT NULL,
    range_end bigint NOT NULL,
    action text NOT NULL,
    state text NOT NULL,
    task_id uuid,
    own boolean DEFAULT false NOT NULL,
    row_count bigint,
    settled_at timestamp with time zone,
    CONSTRAINT backfill_chunks_action_check CHECK ((action = ANY (ARRAY['build'::text, 'rebuild'::text, 'there'::text, 'no_input'::text]))),
    CONSTRAINT backfill_chunks_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'created'::text, 'completed'::text, 'failed'::text, 'canceled'::text, 'skipped'::text])))
);
ALTER TABLE public.backfill_chunks OWNER TO trace_state;
CREATE TABLE public.backfills (
    backfill_id uuid DEFAULT gen_random_uuid() NOT NULL,
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    generation_hash text NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    range_start bigint NOT NULL,
    range_end bigint NOT NULL,
    chunk bigint NOT NULL,
    force boolean NOT NULL,
    state text DEFAULT 'running'::text NOT NULL,
    why text DEFAULT ''::text NOT NULL,
    rounds integer DEFAULT 1 NOT NULL,
    made_by text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT backfills_check CHECK ((range_start <= range_end)),
    CONSTRAINT backfills_check1 CHECK (((state = 'running'::text) = (ended_at IS NULL))),
    CONSTRAINT backfills_chunk_check CHECK ((chunk >= 1)),
    CONSTRAINT backfills_state_check CHECK ((state = ANY (ARRAY['running'::text, 'complete'::text, 'failed'::text, 'canceled'::text])))
);
ALTER TABLE public.backfills OWNER TO trace_state;
CREATE TABLE public.buffer_publishes (
    publish_id uuid DEFAULT gen_random_uuid() NOT NULL,
    org_id uuid NOT NULL,
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    batch_uri text NOT NULL,
    content_type text NOT NULL,
    record_count bigint,
    batch_size_bytes bigint,
    accepted_at timestamp with time zone DEFAULT now() NOT NULL,
    publish_no bigint NOT NULL,
    sunk_at timestamp with time zone,
    row_count bigint,
    cursor_value bigint,
    failed_at timestamp with time zone,
    error_code text,
    error_message text,
    ask_again_at timestamp with time zone DEFAULT (now() + '00:10:00'::interval) NOT NULL,
    CONSTRAINT buffer_publishes_check CHECK (((sunk_at IS NULL) OR (failed_at IS NULL))),
    CONSTRAINT buffer_publishes_check1 CHECK (((sunk_at IS NULL) = (row_count IS NULL))),
    CONSTRAINT buffer_publishes_check2 CHECK (((failed_at IS NULL) = (error_code IS NULL)))
);
ALTER TABLE public.buffer_publishes OWNER TO trace_state;
ALTER TABLE public.buffer_publishes ALTER COLUMN publish_no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.buffer_publishes_publish_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.change_horizon (
    changed_xid xid8 NOT NULL
);
ALTER TABLE public.change_horizon OWNER TO trace_state;
CREATE SEQUENCE public.change_numbers
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.change_numbers OWNER TO trace_state;
CREATE TABLE public.changes (
    change_id uuid DEFAULT (lpad(to_hex(nextval('public.change_numbers'::regclass)), 32, '0'::text))::uuid NOT NULL,
    org_id uuid NOT NULL,
    changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    kind text NOT NULL,
    dag text NOT NULL,
    job text,
    body jsonb NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT changes_kind_check CHECK ((kind = ANY (ARRAY['deploy'::text, 'rollout'::text, 'pause'::text])))
);
ALTER TABLE public.changes OWNER TO trace_state;
CREATE TABLE public.consumer_cursors (
    job_id uuid NOT NULL,
    generation_hash text NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    cursor_value bigint NOT NULL,
    task_id uuid NOT NULL,
    advanced_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.consumer_cursors OWNER TO trace_state;
CREATE TABLE public.datasets (
    dataset_uuid uuid DEFAULT gen_random_uuid() NOT NULL,
    org_id uuid NOT NULL,
    job_id uuid,
    output_name text NOT NULL,
    dataset_version uuid,
    building_version uuid,
    buffer_name text,
    CONSTRAINT datasets_of_a_job_or_a_name CHECK (((job_id IS NULL) = (buffer_name IS NOT NULL)))
);
ALTER TABLE public.datasets OWNER TO trace_state;
CREATE TABLE public.job_inputs (
    revision_id uuid NOT NULL,
    input_index integer NOT NULL,
    name text NOT NULL,
    dataset_uuid uuid NOT NULL,
    where_map jsonb,
    dataset_version uuid
);
ALTER TABLE public.job_inputs OWNER TO trace_state;
CREATE TABLE public.job_revisions (
    revision_id uuid DEFAULT gen_random_uuid() NOT NULL,
    job_id uuid NOT NULL,
    definition_hash text NOT NULL,
    generation_hash text NOT NULL,
    activation text NOT NULL,
    runtime text NOT NULL,
    operator text NOT NULL,
    config jsonb NOT NULL,
    source jsonb,
    execution_strategy text NOT NULL,
    update_strategy text NOT NULL,
    unique_key text[] DEFAULT '{}'::text[] NOT NULL,
    max_attempts integer NOT NULL,
    timeout_seconds integer NOT NULL,
    heartbeat_timeout_seconds integer NOT NULL,
    priority text NOT NULL,
    max_concurrency integer,
    max_queue_depth integer,
    max_queue_age integer,
    definition jsonb,
    bootstrap jsonb,
    secrets text[] DEFAULT '{}'::text[] NOT NULL,
    udf jsonb,
    CONSTRAINT job_revisions_activation_check CHECK ((activation = ANY (ARRAY['source'::text, 'reactive'::text]))),
    CONSTRAINT job_revisions_execution_strategy_check CHECK ((execution_strategy = ANY (ARRAY['PerPartition'::text, 'PerUpdate'::text]))),
    CONSTRAINT job_revisions_heartbeat_timeout_seconds_check CHECK ((heartbeat_timeout_seconds >= 1)),
    CONSTRAINT job_revisions_max_attempts_check CHECK ((max_attempts >= 1)),
    CONSTRAINT job_revisions_max_concurrency_check CHECK ((max_concurrency >= 1)),
    CONSTRAINT job_revisions_max_queue_age_check CHECK ((max_queue_age >= 1)),
    CONSTRAINT job_revisions_max_queue_depth_check CHECK ((max_queue_depth >= 1)),
    CONSTRAINT job_revisions_priority_check CHECK ((priority = ANY (ARRAY['normal'::text, 'bulk'::text]))),
    CONSTRAINT job_revisions_timeout_seconds_check CHECK ((timeout_seconds >= 1)),
    CONSTRAINT job_revisions_update_strategy_check CHECK ((update_strategy = ANY (ARRAY['replace'::text, 'append'::text])))
);
ALTER TABLE public.job_revisions OWNER TO trace_state;
CREATE TABLE public.jobs (
    job_id uuid DEFAULT gen_random_uuid() NOT NULL,
    org_id uuid NOT NULL,
    dag_id uuid NOT NULL,
    name text NOT NULL,
    revision_id uuid,
    active boolean DEFAULT true NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    building_revision_id uuid,
    bulk_paused_at timestamp with time zone,
    bulk_paused_by text,
    capped_operator text,
    CONSTRAINT jobs_check CHECK (((paused_at IS NULL) = (paused_by IS NULL))),
    CONSTRAINT jobs_check1 CHECK (((bulk_paused_at IS NULL) = (bulk_paused_by IS NULL)))
);
ALTER TABLE public.jobs OWNER TO trace_state;
CREATE VIEW public.consumers AS
 SELECT i.dataset_uuid,
    COALESCE(i.dataset_version, d.dataset_version) AS dataset_version,
    j.org_id,
    j.job_id,
    r.revision_id,
    r.generation_hash,
    r.runtime,
    r.update_strategy,
    ((r.priority = 'bulk'::text) OR ((r.revision_id = j.building_revision_id) IS TRUE)) AS bulk,
    r.max_attempts,
    r.max_concurrency,
    r.timeout_seconds,
    r.heartbeat_timeout_seconds
   FROM (((public.job_inputs i
     JOIN public.datasets d ON ((d.dataset_uuid = i.dataset_uuid)))
     JOIN public.job_revisions r ON (((r.revision_id = i.revision_id) AND (r.activation = 'reactive'::text))))
     JOIN public.jobs j ON (((j.job_id = r.job_id) AND j.active AND ((r.revision_id = j.revision_id) OR (r.revision_id = j.building_revision_id)))));
ALTER VIEW public.consumers OWNER TO trace_state;
CREATE TABLE public.dag_pauses (
    dag_id uuid NOT NULL,
    by_name text NOT NULL,
    tier text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT dag_pauses_tier_check CHECK ((tier = ANY (ARRAY['bulk'::text, 'normal'::text])))
);
ALTER TABLE public.dag_pauses OWNER TO trace_state;
CREATE TABLE public.dag_version_jobs (
    dag_version uuid NOT NULL,
    job_id uuid NOT NULL,
    revision_id uuid NOT NULL
);
ALTER TABLE public.dag_version_jobs OWNER TO trace_state;
CREATE TABLE public.dag_versions (
    dag_version uuid DEFAULT gen_random_uuid() NOT NULL,
    dag_id uuid NOT NULL,
    text_sha256 bytea NOT NULL,
    text text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    publications jsonb DEFAULT '[]'::jsonb NOT NULL
);
ALTER TABLE public.dag_versions OWNER TO trace_state;
CREATE TABLE public.dags (
    dag_id uuid DEFAULT gen_random_uuid() NOT NULL,
    org_id uuid NOT NULL,
    name text NOT NULL,
    dag_version uuid,
    deployed_at timestamp with time zone
);
ALTER TABLE public.dags OWNER TO trace_state;
CREATE TABLE public.job_outputs (
    revision_id uuid NOT NULL,
    output_index integer NOT NULL,
    name text NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL
);
ALTER TABLE public.job_outputs OWNER TO trace_state;
CREATE VIEW public.dataset_producers AS
 SELECT datasets.dataset_uuid,
    datasets.job_id,
    datasets.output_name
   FROM public.datasets
  WHERE (datasets.job_id IS NOT NULL)
UNION ALL
 SELECT DISTINCT d.dataset_uuid,
    j.job_id,
    o.name AS output_name
   FROM (((public.datasets d
     JOIN public.job_outputs o USING (dataset_uuid))
     JOIN public.job_revisions r USING (revision_id))
     JOIN public.jobs j ON (((j.job_id = r.job_id) AND j.active AND ((r.revision_id = j.revision_id) OR (r.revision_id = j.building_revision_id)))))
  WHERE (d.job_id IS NULL);
ALTER VIEW public.dataset_producers OWNER TO trace_state;
CREATE TABLE public.dataset_versions (
    dataset_version uuid DEFAULT gen_random_uuid() NOT NULL,
    dataset_uuid uuid NOT NULL,
    generation_no integer NOT NULL,
    generation_hash text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    columns jsonb,
    unique_key text[],
    analysed_columns jsonb,
    abandoned_at timestamp with time zone,
    CONSTRAINT dataset_versions_check CHECK (((columns IS NULL) = (unique_key IS NULL)))
);
ALTER TABLE public.dataset_versions OWNER TO trace_state;
ALTER TABLE public.dataset_versions ALTER COLUMN generation_no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.dataset_versions_generation_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.deferred_events (
    event_id uuid NOT NULL,
    job_id uuid NOT NULL,
    bulk boolean NOT NULL,
    deferred_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.deferred_events OWNER TO trace_state;
CREATE TABLE public.events (
    event_id uuid DEFAULT uuidv7() NOT NULL,
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    scope_key text NOT NULL,
    partition_key text,
    range_start bigint,
    range_end bigint,
    cursor_value bigint,
    producer_task_id uuid NOT NULL,
    attempt integer NOT NULL,
    accepted_at timestamp with time zone DEFAULT now() NOT NULL,
    routed_at timestamp with time zone
);
ALTER TABLE public.events OWNER TO trace_state;
CREATE TABLE public.invalidation_consumers (
    invalidation_id uuid NOT NULL,
    job_id uuid NOT NULL,
    task_id uuid NOT NULL,
    processed_at timestamp with time zone
);
ALTER TABLE public.invalidation_consumers OWNER TO trace_state;
CREATE TABLE public.invalidations (
    invalidation_id uuid DEFAULT gen_random_uuid() NOT NULL,
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    kind text NOT NULL,
    partition_key text,
    range_start bigint,
    range_end bigint,
    filter jsonb,
    reason text DEFAULT ''::text NOT NULL,
    made_by text NOT NULL,
    task_id uuid,
    attempt integer,
    once_key text,
    made_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    made_at timestamp with time zone DEFAULT now() NOT NULL,
    routed_at timestamp with time zone,
    CONSTRAINT invalidations_check CHECK ((((range_start IS NULL) = (range_end IS NULL)) AND (range_start <= range_end))),
    CONSTRAINT invalidations_check1 CHECK (((kind = 'row_range'::text) OR (partition_key IS NOT NULL))),
    CONSTRAINT invalidations_check2 CHECK (((kind = 'partition'::text) OR ((range_start IS NOT NULL) AND (partition_key IS NULL)))),
    CONSTRAINT invalidations_kind_check CHECK ((kind = ANY (ARRAY['partition'::text, 'row_range'::text])))
);
ALTER TABLE public.invalidations OWNER TO trace_state;
CREATE TABLE public.memberships (
    org_id uuid NOT NULL,
    user_name text NOT NULL,
    role text NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    disabled_at timestamp with time zone,
    CONSTRAINT memberships_role_check CHECK ((role = ANY (ARRAY['reader'::text, 'writer'::text, 'admin'::text])))
);
ALTER TABLE public.memberships OWNER TO trace_state;
CREATE TABLE public.operator_caps (
    operator text NOT NULL,
    cap integer NOT NULL,
    CONSTRAINT operator_caps_cap_check CHECK ((cap >= 1))
);
ALTER TABLE public.operator_caps OWNER TO trace_state;
CREATE TABLE public.orgs (
    org_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.orgs OWNER TO trace_state;
CREATE TABLE public.outbox (
    outbox_id bigint NOT NULL,
    kind text NOT NULL,
    target text DEFAULT ''::text NOT NULL,
    subject uuid NOT NULL,
    body jsonb,
    tries integer DEFAULT 0 NOT NULL,
    next_try_at timestamp with time zone DEFAULT now() NOT NULL,
    failed_at timestamp with time zone,
    last_error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000');
ALTER TABLE public.outbox OWNER TO trace_state;
ALTER TABLE public.outbox ALTER COLUMN outbox_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.partition_inputs (
    dataset_version uuid NOT NULL,
    partition_key text NOT NULL,
    input_version uuid NOT NULL,
    input_key text NOT NULL,
    input_task_id uuid,
    input_attempt integer,
    task_id uuid NOT NULL,
    attempt integer NOT NULL
);
ALTER TABLE public.partition_inputs OWNER TO trace_state;
CREATE TABLE public.partitions (
    dataset_version uuid NOT NULL,
    generation_no integer NOT NULL,
    partition_key text NOT NULL,
    range_start bigint,
    range_end bigint,
    storage_ref jsonb NOT NULL,
    row_count bigint NOT NULL,
    byte_count bigint NOT NULL,
    columns jsonb NOT NULL,
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    committed_at timestamp with time zone DEFAULT now() NOT NULL,
    commit_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    read_snapshot pg_snapshot,
    CONSTRAINT partitions_check CHECK ((((range_start IS NULL) = (range_end IS NULL)) AND (range_start <= range_end)))
);
ALTER TABLE public.partitions OWNER TO trace_state;
CREATE TABLE public.pauses (
    job_id uuid NOT NULL,
    by_job_id uuid,
    by_name text NOT NULL,
    tier text NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT pauses_tier_check CHECK ((tier = ANY (ARRAY['bulk'::text, 'normal'::text])))
);
ALTER TABLE public.pauses OWNER TO trace_state;
CREATE TABLE public.publications (
    org_id uuid NOT NULL,
    name text NOT NULL,
    dataset_uuid uuid NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    storage text DEFAULT 'parquet'::text NOT NULL,
    write_mode text DEFAULT 'replace'::text NOT NULL,
    columns jsonb,
    CONSTRAINT publications_name_check CHECK ((name ~ '^[a-z][a-z0-9_]{0,127}$'::text)),
    CONSTRAINT publications_storage_check CHECK ((storage = ANY (ARRAY['parquet'::text, 'postgres'::text]))),
    CONSTRAINT publications_write_mode_check CHECK ((write_mode = ANY (ARRAY['replace'::text, 'append'::text, 'buffered'::text])))
);
ALTER TABLE public.publications OWNER TO trace_state;
CREATE TABLE public.reconciled_edges (
    job_id uuid NOT NULL,
    generation_hash text NOT NULL,
    dataset_version uuid NOT NULL,
    commit_xid xid8 NOT NULL,
    partition_key text NOT NULL
);
ALTER TABLE public.reconciled_edges OWNER TO trace_state;
CREATE TABLE public.reconciled_events (
    only_one boolean DEFAULT true NOT NULL,
    accepted_at timestamp with time zone NOT NULL,
    CONSTRAINT reconciled_events_only_one_check CHECK (only_one)
);
ALTER TABLE public.reconciled_events OWNER TO trace_state;
CREATE TABLE public.rollout_targets (
    rollout_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    from_version uuid NOT NULL,
    to_version uuid NOT NULL
);
ALTER TABLE public.rollout_targets OWNER TO trace_state;
CREATE TABLE public.rollouts (
    rollout_id uuid DEFAULT gen_random_uuid() NOT NULL,
    dag_id uuid NOT NULL,
    dag_version uuid NOT NULL,
    previous_version uuid,
    state text NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT rollouts_check CHECK (((state = 'building'::text) = (ended_at IS NULL))),
    CONSTRAINT rollouts_state_check CHECK ((state = ANY (ARRAY['building'::text, 'complete'::text, 'rolled_back'::text, 'superseded'::text])))
);
ALTER TABLE public.rollouts OWNER TO trace_state;
CREATE TABLE public.schema_migrations (
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.schema_migrations OWNER TO trace_state;
CREATE TABLE public.task_attempts (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker_id text,
    started_at timestamp with time zone,
    ended_at timestamp with time zone DEFAULT now() NOT NULL,
    outcome text NOT NULL,
    cause text,
    error_code text,
    error_message text,
    CONSTRAINT task_attempts_outcome_check CHECK ((outcome = ANY (ARRAY['Completed'::text, 'Failed'::text, 'Canceled'::text])))
);
ALTER TABLE public.task_attempts OWNER TO trace_state;
CREATE TABLE public.task_tallies (
    job_id uuid NOT NULL,
    status text NOT NULL,
    n bigint NOT NULL
);
ALTER TABLE public.task_tallies OWNER TO trace_state;
CREATE TABLE public.task_tally_corrections (
    correction_id bigint NOT NULL,
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    status text NOT NULL,
    changed_xid xid8 NOT NULL
);
ALTER TABLE public.task_tally_corrections OWNER TO trace_state;
ALTER TABLE public.task_tally_corrections ALTER COLUMN correction_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.task_tally_corrections_correction_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.task_tally_marks (
    org_id uuid NOT NULL,
    counted_to xid8 NOT NULL
);
ALTER TABLE public.task_tally_marks OWNER TO trace_state;
CREATE TABLE public.tasks (
    task_id uuid DEFAULT uuidv7() NOT NULL,
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    revision_id uuid NOT NULL,
    runtime text NOT NULL,
    bulk boolean DEFAULT false NOT NULL,
    dedupe_key text NOT NULL,
    dataset_uuid uuid,
    dataset_version uuid,
    partition_key text,
    range_start bigint,
    range_end bigint,
    cursor_value bigint,
    status text DEFAULT 'Queued'::text NOT NULL,
    attempt integer DEFAULT 1 NOT NULL,
    max_attempts integer NOT NULL,
    max_concurrency integer,
    timeout_seconds integer NOT NULL,
    lease_seconds integer NOT NULL,
    lease_token uuid,
    lease_expires_at timestamp with time zone,
    deadline_at timestamp with time zone,
    worker_id text,
    cancel_requested boolean DEFAULT false NOT NULL,
    completion_hash bytea,
    cause text,
    error_code text,
    error_message text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    queued_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    retry_at timestamp with time zone,
    abandoned boolean DEFAULT false NOT NULL,
    pinned_snapshot pg_snapshot,
    invalidation_id uuid,
    changed_xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    CONSTRAINT tasks_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT tasks_only_failed_wait_for_a_retry CHECK (((retry_at IS NULL) OR (status = 'Failed'::text))),
    CONSTRAINT tasks_queued_has_no_lease CHECK (((status <> 'Queued'::text) OR (lease_token IS NULL))),
    CONSTRAINT tasks_running_has_a_lease CHECK (((status <> 'Running'::text) OR ((lease_token IS NOT NULL) AND (lease_expires_at IS NOT NULL)))),
    CONSTRAINT tasks_status_check CHECK ((status = ANY (ARRAY['Queued'::text, 'Running'::text, 'Completed'::text, 'Failed'::text, 'Canceled'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');
ALTER TABLE public.tasks OWNER TO trace_state;
CREATE TABLE public.trips (
    job_id uuid NOT NULL,
    level smallint NOT NULL,
    reason text NOT NULL,
    measured bigint NOT NULL,
    threshold bigint NOT NULL,
    since timestamp with time zone NOT NULL,
    level_since timestamp with time zone NOT NULL,
    CONSTRAINT trips_level_check CHECK ((level = ANY (ARRAY[1, 2]))),
    CONSTRAINT trips_reason_check CHECK ((reason = ANY (ARRAY['depth'::text, 'age'::text])))
);
ALTER TABLE public.trips OWNER TO trace_state;
CREATE TABLE public.users (
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT users_name_check CHECK ((name ~ '^[a-z][a-z0-9_.@-]{0,127}$'::text))
);
ALTER TABLE public.users OWNER TO trace_state;
INSERT INTO public.backfill_chunks VALUES
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', 0, 9, 'build', 'created', '01a1e652-1d61-76c0-83af-7dd9c072be8a', true, NULL, NULL),
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', 10, 19, 'build', 'created', '01a1e652-1d61-7acf-b937-2726e69c5932', true, NULL, NULL),
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', 20, 29, 'build', 'created', '01a1e652-1d61-7bb2-8c39-fdb79f9c42f5', true, NULL, NULL),
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', 30, 39, 'build', 'created', '01a1e652-1d61-7c63-8248-ea4d36d134ab', true, NULL, NULL),
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', 40, 49, 'build', 'created', '01a1e652-1d61-7d17-9ee1-187ecd25fc69', true, NULL, NULL),
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', 50, 59, 'build', 'created', '01a1e652-1d61-7e50-9c3f-6d0f86846687', true, NULL, NULL);
INSERT INTO public.backfills VALUES
	('05e58d74-bb3c-4baf-a149-be1e1ad90182', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', 0, 59, 10, false, 'running', '', 1, 'local', '2026-11-16 21:45:03.557387+00', '2026-11-16 21:45:03.557387+00', NULL);
INSERT INTO public.buffer_publishes OVERRIDING SYSTEM VALUE VALUES
	('0ba86a62-2005-4060-bcfb-5073f93c81c8', '00000000-0000-0000-0000-000000000001', '01a1e652-1e24-71ad-8fdd-96f7749a6e1c', 1, '1ef674a2-cc73-4cee-9bbf-ca10c8181dca', 'ddc414c8-4776-4af2-82f7-891f5cf61770', 's3://trace/buffers/1ef674a2-cc73-4cee-9bbf-ca10c8181dca/01a1e652-1e24-71ad-8fdd-96f7749a6e1c/1/7132feae64294f8f9a9a615437e408f2.jsonl', 'application/jsonl', NULL, NULL, '2026-11-16 21:45:04.553882+00', 1, '2026-11-16 21:45:05.689818+00', 2, 1, NULL, NULL, NULL, '2026-11-16 21:55:04.553882+00'),
	('80f92e41-7759-4679-bddf-101c56f6d07b', '00000000-0000-0000-0000-000000000001', '01a1e652-1e24-71ad-8fdd-96f7749a6e1c', 1, '1ef674a2-cc73-4cee-9bbf-ca10c8181dca', 'ddc414c8-4776-4af2-82f7-891f5cf61770', 's3://trace/buffers/1ef674a2-cc73-4cee-9bbf-ca10c8181dca/01a1e652-1e24-71ad-8fdd-96f7749a6e1c/1/453ff490185c47fdbed2742abe266058.jsonl', 'application/jsonl', NULL, NULL, '2026-11-16 21:45:05.700927+00', 2, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-16 21:55:05.700927+00');
INSERT INTO public.change_horizon VALUES
	('0');
INSERT INTO public.changes VALUES
	('00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000001', '783', 'rollout', 'orders', NULL, '{"state": "complete", "rollout_id": "1155a1ac-b733-44d5-a52a-392736c1d2a6", "dag_version": "7c4f93f1-c7db-47ca-bc44-33c13c34c1b7"}', '2026-11-16 21:45:01.031853+00'),
	('00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001', '783', 'deploy', 'orders', NULL, '{"dag_version": "7c4f93f1-c7db-47ca-bc44-33c13c34c1b7", "deployed_at": "2026-11-16T21:45:01.031853+00:00"}', '2026-11-16 21:45:01.031853+00'),
	('00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000001', '812', 'rollout', 'orders', NULL, '{"state": "building", "rollout_id": "a8cb6a45-b186-493d-954c-9b5936b63adb", "dag_version": "53135ec1-094d-4ea6-82ab-d89588125567"}', '2026-11-16 21:45:02.053723+00'),
	('00000000-0000-0000-0000-000000000004', '00000000-0000-0000-0000-000000000001', '812', 'deploy', 'orders', NULL, '{"dag_version": "53135ec1-094d-4ea6-82ab-d89588125567", "deployed_at": "2026-11-16T21:45:02.053723+00:00"}', '2026-11-16 21:45:02.053723+00'),
	('00000000-0000-0000-0000-000000000005', '00000000-0000-0000-0000-000000000001', '824', 'rollout', 'orders', NULL, '{"state": "complete", "rollout_id": "a8cb6a45-b186-493d-954c-9b5936b63adb", "dag_version": "53135ec1-094d-4ea6-82ab-d89588125567"}', '2026-11-16 21:45:02.39733+00'),
	('00000000-0000-0000-0000-000000000006', '00000000-0000-0000-0000-000000000001', '825', 'rollout', 'orders', NULL, '{"state": "building", "rollout_id": "634a7d85-16f5-4940-a65e-eced1313ef06", "dag_version": "0a16ce4b-8d70-42d7-ad19-97cffd8f44b6"}', '2026-11-16 21:45:02.457704+00'),
	('00000000-0000-0000-0000-000000000007', '00000000-0000-0000-0000-000000000001', '825', 'deploy', 'orders', NULL, '{"dag_version": "0a16ce4b-8d70-42d7-ad19-97cffd8f44b6", "deployed_at": "2026-11-16T21:45:02.457704+00:00"}', '2026-11-16 21:45:02.457704+00'),
	('00000000-0000-0000-0000-000000000008', '00000000-0000-0000-0000-000000000001', '831', 'rollout', 'states', NULL, '{"state": "complete", "rollout_id": "4d81effc-1017-4d96-8aa9-43b65dba48cb", "dag_version": "99dc7438-e662-48c1-b039-253009c08680"}', '2026-11-16 21:45:02.605745+00'),
	('00000000-0000-0000-0000-000000000009', '00000000-0000-0000-0000-000000000001', '831', 'deploy', 'states', NULL, '{"dag_version": "99dc7438-e662-48c1-b039-253009c08680", "deployed_at": "2026-11-16T21:45:02.605745+00:00"}', '2026-11-16 21:45:02.605745+00'),
	('00000000-0000-0000-0000-00000000000a', '00000000-0000-0000-0000-000000000001', '858', 'rollout', 'held', NULL, '{"state": "complete", "rollout_id": "0f787835-c2e9-4675-bf1b-bf9147d0be01", "dag_version": "baaa9597-b5e5-4509-ac0f-11bf5a9962ad"}', '2026-11-16 21:45:03.099648+00'),
	('00000000-0000-0000-0000-00000000000b', '00000000-0000-0000-0000-000000000001', '858', 'deploy', 'held', NULL, '{"dag_version": "baaa9597-b5e5-4509-ac0f-11bf5a9962ad", "deployed_at": "2026-11-16T21:45:03.099648+00:00"}', '2026-11-16 21:45:03.099648+00'),
	('00000000-0000-0000-0000-00000000000c', '00000000-0000-0000-0000-000000000001', '877', 'pause', 'held', 'after', '{"by": "local", "tier": "normal", "paused": true, "reason": "maintenance"}', '2026-11-16 21:45:03.424617+00'),
	('00000000-0000-0000-0000-00000000000d', '00000000-0000-0000-0000-000000000001', '880', 'rollout', 'history', NULL, '{"state": "complete", "rollout_id": "8ab8f9d9-8151-40d2-b05e-f184a245f5bd", "dag_version": "fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90"}', '2026-11-16 21:45:03.469828+00'),
	('00000000-0000-0000-0000-00000000000e', '00000000-0000-0000-0000-000000000001', '880', 'deploy', 'history', NULL, '{"dag_version": "fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90", "deployed_at": "2026-11-16T21:45:03.469828+00:00"}', '2026-11-16 21:45:03.469828+00'),
	('00000000-0000-0000-0000-00000000000f', '00000000-0000-0000-0000-000000000001', '893', 'rollout', 'sensors', NULL, '{"state": "complete", "rollout_id": "84f63c26-d7fe-4b59-a774-85a4e574d1a9", "dag_version": "07c6dd71-665c-460a-86e9-e0b036bd298b"}', '2026-11-16 21:45:03.6787+00'),
	('00000000-0000-0000-0000-000000000010', '00000000-0000-0000-0000-000000000001', '893', 'deploy', 'sensors', NULL, '{"dag_version": "07c6dd71-665c-460a-86e9-e0b036bd298b", "deployed_at": "2026-11-16T21:45:03.6787+00:00"}', '2026-11-16 21:45:03.6787+00');
INSERT INTO public.dag_version_jobs VALUES
	('7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', '7b22dfb0-5524-4fd4-9d19-4516883fbefb', '1588c062-1d1c-4428-96a5-3772126cee9e'),
	('7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', '72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', 'd31af67f-0245-47ff-9905-dc324487caa8'),
	('7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', '3e692b77-cebb-4265-9edd-6e8a0d199408', '238bd059-6127-4989-9c7a-1a717d9e37c7'),
	('7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'ffb830fb-8e2a-4601-96ec-f1cf06118fd6'),
	('53135ec1-094d-4ea6-82ab-d89588125567', '7b22dfb0-5524-4fd4-9d19-4516883fbefb', '1588c062-1d1c-4428-96a5-3772126cee9e'),
	('53135ec1-094d-4ea6-82ab-d89588125567', '72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', 'd31af67f-0245-47ff-9905-dc324487caa8'),
	('53135ec1-094d-4ea6-82ab-d89588125567', '3e692b77-cebb-4265-9edd-6e8a0d199408', '238bd059-6127-4989-9c7a-1a717d9e37c7'),
	('53135ec1-094d-4ea6-82ab-d89588125567', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', '4d435c76-ce23-42a4-8182-74ceb06dd918'),
	('0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '7b22dfb0-5524-4fd4-9d19-4516883fbefb', '1588c062-1d1c-4428-96a5-3772126cee9e'),
	('0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', 'd31af67f-0245-47ff-9905-dc324487caa8'),
	('0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '3e692b77-cebb-4265-9edd-6e8a0d199408', '238bd059-6127-4989-9c7a-1a717d9e37c7'),
	('0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'd9404d0e-40bf-4b1f-95d2-91e17f9bc8e9'),
	('99dc7438-e662-48c1-b039-253009c08680', '13239434-db47-4d47-8d1a-7f51d5f74320', 'ef517cec-abf2-4b86-a740-b8d31a555be3'),
	('99dc7438-e662-48c1-b039-253009c08680', '5ddfe920-4863-48b9-9345-ed118646eccf', 'd0c05f73-b812-4583-ab25-b7e976196a71'),
	('99dc7438-e662-48c1-b039-253009c08680', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a'),
	('99dc7438-e662-48c1-b039-253009c08680', '02b1badc-afa0-4ea7-80bc-14fe5e592626', 'dd2c0518-80a5-44cc-921b-f7a6298a7205'),
	('baaa9597-b5e5-4509-ac0f-11bf5a9962ad', '0b7a082e-8281-4dbd-ad4b-93b66f2d01df', 'c71325cb-c539-476f-94bb-682f38489442'),
	('baaa9597-b5e5-4509-ac0f-11bf5a9962ad', '57b6b4ae-184f-4608-917b-381f630169e5', '1971261c-b64f-4b91-bd37-5f3389f64ba0'),
	('baaa9597-b5e5-4509-ac0f-11bf5a9962ad', '4e8fa48d-ad42-4b70-8441-27ce4e0b44a8', '637c4b46-77eb-474a-8512-d8e9e7b3704f'),
	('baaa9597-b5e5-4509-ac0f-11bf5a9962ad', '35cc2957-1807-474a-afb5-6f71619887f8', '45f89464-15a1-4f39-845e-b2bd60b9848d'),
	('fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', 'bac06107-85e1-438c-a7d3-b4eb2523e137', '1c2a204d-0578-4877-8780-391a9b82879d'),
	('fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', 'a5b4c9c2-5a52-44b6-8c8c-b1cf8000d388', 'ac015768-c741-4028-8feb-a2c5565ff1c3'),
	('fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858'),
	('fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', 'c4a6cdd6-2f2f-445c-8144-65d0ac3ff90e', '703755c6-7e61-4021-9ef9-cc7cdf435b85'),
	('07c6dd71-665c-460a-86e9-e0b036bd298b', 'dfe3b398-7d83-4bbf-9495-d33348341196', 'd1accd26-b142-406e-83d6-21871df4874e'),
	('07c6dd71-665c-460a-86e9-e0b036bd298b', '03fb9e3e-6c3f-44f3-a19f-1687f119c0d8', '4632ecd7-4fb1-461d-bd85-04ed149be843');
INSERT INTO public.dag_versions VALUES
	('7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', '2811befd-ccde-476d-96a6-03cdcff33619', '\x660e67047a9d85e12c9064f4f84a11469c9277155fb9bfa6c81623d1ce9382b4', '
name: orders
jobs:
  - name: request
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [pieces]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1 FROM pieces"}

  - name: after
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [done]
    config: {sql: "SELECT 1 FROM out"}
publish:
  - {name: orders_out, from: {job: work}}
  - {name: orders_done, from: {job: after}}
', '2026-11-16 21:45:01.031853+00', '[{"name": "orders_out", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "d5c84b71-2a20-4dda-82f6-1f11826f4e9d"}, {"name": "orders_done", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "6d2bf7e2-0287-4cbb-8e8a-81d3695caa97"}]'),
	('53135ec1-094d-4ea6-82ab-d89588125567', '2811befd-ccde-476d-96a6-03cdcff33619', '\xba8ddc4b3a5e03c84c2493a4af51e40a2478b9511eea906d057130358314c266', '
name: orders
jobs:
  - name: request
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [pieces]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1 FROM pieces"}

  - name: after
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [done]
    config: {sql: "SELECT 2 FROM out"}
publish:
  - {name: orders_out, from: {job: work}}
  - {name: orders_done, from: {job: after}}
', '2026-11-16 21:45:02.053723+00', '[{"name": "orders_out", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "d5c84b71-2a20-4dda-82f6-1f11826f4e9d"}, {"name": "orders_done", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "6d2bf7e2-0287-4cbb-8e8a-81d3695caa97"}]'),
	('0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '2811befd-ccde-476d-96a6-03cdcff33619', '\x470ce6fe4bd4eadd8110f660c98d0f67ebdec4e78af26b43aa00b909f8ffc1ef', '
name: orders
jobs:
  - name: request
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [pieces]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1 FROM pieces"}

  - name: after
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [done]
    config: {sql: "SELECT 3 FROM out"}
publish:
  - {name: orders_out, from: {job: work}}
  - {name: orders_done, from: {job: after}}
', '2026-11-16 21:45:02.457704+00', '[{"name": "orders_out", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "d5c84b71-2a20-4dda-82f6-1f11826f4e9d"}, {"name": "orders_done", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "6d2bf7e2-0287-4cbb-8e8a-81d3695caa97"}]'),
	('99dc7438-e662-48c1-b039-253009c08680', 'fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', '\xcf1d8c4d5851e52a5a8d61e4edf89a511954efe72f822c90685c9fcc404db548', '
name: states
jobs:
  - name: request
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [pieces]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1 FROM pieces"}
    max_attempts: 3
  - name: after
    operator: sql
    inputs: [{from: {job: work}}]
    outputs: [done]
    config: {sql: "SELECT 1 FROM out"}
publish:
  - {name: states_out, from: {job: work}}
  - {name: states_done, from: {job: after}}
', '2026-11-16 21:45:02.605745+00', '[{"name": "states_out", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "46a40e39-d449-43a0-b53a-f7645c997b50"}, {"name": "states_done", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "f43555af-7d05-4787-a575-8a28cc94227e"}]'),
	('baaa9597-b5e5-4509-ac0f-11bf5a9962ad', '5bb0efc9-41df-4016-8083-9da9235f3ad2', '\x69f75274b2c3b0d69f009934ddc29b7be3f943fa8480422147041b5c91f579ed', '
name: held
jobs:
  - name: request
    activation: source
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{name: split, from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1"}
  - name: after
    operator: sql
    inputs: [{name: work, from: {job: work}}]
    outputs: [out]
    config: {sql: "SELECT 1"}
publish:
  - {name: held_work, from: {job: work}}
  - {name: held_after, from: {job: after}}
', '2026-11-16 21:45:03.099648+00', '[{"name": "held_work", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "881cdeff-c667-4d38-ad56-799b1ac1b79d"}, {"name": "held_after", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "f3b05a90-784e-4e10-ae9f-ab29883241c2"}]'),
	('fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', '58ae8585-4842-43e7-afa1-7d4071b4021e', '\xb6d3ff8a4e79ad686c91e08a6702bba03b1859d03684734ef7c06afce3e9912e', '
name: history
jobs:
  - name: request
    activation: source
    source: {kind: manual}
    outputs: [ranges]
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 10}
  - name: work
    operator: sql
    inputs: [{name: split, from: {job: split}}]
    outputs: [out]
    config: {sql: "SELECT 1"}
  - name: after
    operator: sql
    inputs: [{name: work, from: {job: work}}]
    outputs: [out]
    config: {sql: "SELECT 1"}
publish:
  - {name: history_work, from: {job: work}}
  - {name: history_after, from: {job: after}}
', '2026-11-16 21:45:03.469828+00', '[{"name": "history_work", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "971f62a9-6783-4913-b696-e4464f692d0c"}, {"name": "history_after", "columns": null, "storage": "parquet", "unique_key": [], "write_mode": "replace", "description": "", "dataset_uuid": "baa6d8fe-ee4c-4373-9af3-9b91268bfaa9"}]'),
	('07c6dd71-665c-460a-86e9-e0b036bd298b', 'ed3b63ba-f9e0-4f23-b356-a360e7fd3f9d', '\x9a2ba71a2b9e7e543fdd3e6c815b6de21ce84dbea4f8072e7e626b51a15199ba', 'name: sensors
jobs:
  - name: request
    source: {kind: manual}
    outputs: [ranges]
  - name: collect
    operator: sql
    inputs: [{from: {job: request}}]
    outputs: [out]
    update_strategy: append
    unique_key: [id]
    config: {sql: "SELECT 1 FROM ranges"}
publish:
  - {name: readings, from: {job: collect}, write_mode: buffered, schema: [{name: id, type: string, nullable: false}, {name: n, type: long}]}
', '2026-11-16 21:45:03.6787+00', '[{"name": "readings", "columns": [{"name": "id", "type": "string", "nullable": false}, {"name": "n", "type": "long", "nullable": true}], "storage": "postgres", "unique_key": ["id"], "write_mode": "buffered", "description": "", "dataset_uuid": "1ef674a2-cc73-4cee-9bbf-ca10c8181dca"}]');
INSERT INTO public.dags VALUES
	('2811befd-ccde-476d-96a6-03cdcff33619', '00000000-0000-0000-0000-000000000001', 'orders', '0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '2026-11-16 21:45:02.457704+00'),
	('fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', '00000000-0000-0000-0000-000000000001', 'states', '99dc7438-e662-48c1-b039-253009c08680', '2026-11-16 21:45:02.605745+00'),
	('5bb0efc9-41df-4016-8083-9da9235f3ad2', '00000000-0000-0000-0000-000000000001', 'held', 'baaa9597-b5e5-4509-ac0f-11bf5a9962ad', '2026-11-16 21:45:03.099648+00'),
	('58ae8585-4842-43e7-afa1-7d4071b4021e', '00000000-0000-0000-0000-000000000001', 'history', 'fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', '2026-11-16 21:45:03.469828+00'),
	('ed3b63ba-f9e0-4f23-b356-a360e7fd3f9d', '00000000-0000-0000-0000-000000000001', 'sensors', '07c6dd71-665c-460a-86e9-e0b036bd298b', '2026-11-16 21:45:03.6787+00');
INSERT INTO public.dataset_versions OVERRIDING SYSTEM VALUE VALUES
	('ce956e6c-abec-4219-ad4d-36eae62eb369', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 1, '53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e', '2026-11-16 21:45:01.031853+00', NULL, NULL, NULL, NULL),
	('ebbc6bc3-967c-4f76-9655-721890556061', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 2, '70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8', '2026-11-16 21:45:01.031853+00', NULL, NULL, NULL, NULL),
	('c80f3ca1-b007-4b50-b699-a27dea87ad16', '96ea8d8b-3653-4fea-aace-fa40820f6a14', 3, '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '2026-11-16 21:45:01.031853+00', NULL, NULL, NULL, NULL),
	('279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', 4, '8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991', '2026-11-16 21:45:01.031853+00', NULL, NULL, NULL, NULL),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 5, '2ca9c3b14eb9428ed21d52e9c1cf0b33ffacc06ed736ffdedf746e9f3a5887a4', '2026-11-16 21:45:02.053723+00', NULL, NULL, NULL, NULL),
	('8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 9, '57152662a5d106c68a2d6462a7e2242d8d9a791f925cf6a771f7568c76156c63', '2026-11-16 21:45:02.457704+00', NULL, NULL, NULL, NULL),
	('1dd3712b-542b-4b9a-9d01-72b95479f6ee', '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', 13, '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '2026-11-16 21:45:02.605745+00', NULL, NULL, NULL, NULL),
	('4d4172e0-a987-4b55-8f92-3661a4282979', '46a40e39-d449-43a0-b53a-f7645c997b50', 14, '8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991', '2026-11-16 21:45:02.605745+00', NULL, NULL, NULL, NULL),
	('525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', 15, '70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8', '2026-11-16 21:45:02.605745+00', NULL, NULL, NULL, NULL),
	('bba0678f-8a4a-4d08-8f43-52388e9358ac', 'f43555af-7d05-4787-a575-8a28cc94227e', 16, '53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e', '2026-11-16 21:45:02.605745+00', NULL, NULL, NULL, NULL),
	('662ff08d-7ea0-46a7-9c6b-96cac0822122', '57733525-e111-4257-a1ce-a6ca9359c6c8', 17, '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '2026-11-16 21:45:03.099648+00', NULL, NULL, NULL, NULL),
	('4c2cae13-e331-40f0-b661-092626a34c19', '881cdeff-c667-4d38-ad56-799b1ac1b79d', 18, 'bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', '2026-11-16 21:45:03.099648+00', NULL, NULL, NULL, NULL),
	('7a5314a7-ae50-4fe4-babe-82797051bc5e', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', 19, '168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44', '2026-11-16 21:45:03.099648+00', NULL, NULL, NULL, NULL),
	('ee4d195e-1f7d-4d00-a426-2eb89cb4a2bc', 'f3b05a90-784e-4e10-ae9f-ab29883241c2', 20, 'b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9', '2026-11-16 21:45:03.099648+00', NULL, NULL, NULL, NULL),
	('40611a67-e23c-4b85-8ef7-d4d972d96956', '32975fb4-49be-47c3-b070-6b1215f3269f', 21, '168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44', '2026-11-16 21:45:03.469828+00', NULL, NULL, NULL, NULL),
	('239f0d05-108f-4a3d-a2ba-3ea670d56c19', '971f62a9-6783-4913-b696-e4464f692d0c', 22, 'bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', '2026-11-16 21:45:03.469828+00', NULL, NULL, NULL, NULL),
	('c7dbc3a2-83dc-4123-93b6-b4824427daa1', 'baa6d8fe-ee4c-4373-9af3-9b91268bfaa9', 23, 'b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9', '2026-11-16 21:45:03.469828+00', NULL, NULL, NULL, NULL),
	('1381da9e-490b-483d-922b-0810c9c40079', 'c7444d5e-a2d2-414a-8a0e-110b712b220a', 24, '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '2026-11-16 21:45:03.469828+00', NULL, NULL, NULL, NULL),
	('ddc414c8-4776-4af2-82f7-891f5cf61770', '1ef674a2-cc73-4cee-9bbf-ca10c8181dca', 25, '1d32edf2f0e283f685abf3b42ea94ce964250742bb1310ba56a74a58441684b1', '2026-11-16 21:45:03.6787+00', '[{"name": "id", "type": "string", "nullable": false}, {"name": "n", "type": "long", "nullable": true}]', '{id}', NULL, NULL),
	('0cd13e94-5f05-471d-bedd-cc0cc4b9e646', 'aeffa707-817e-4578-a5ba-94108ad4a995', 26, '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '2026-11-16 21:45:03.6787+00', NULL, NULL, NULL, NULL);
INSERT INTO public.datasets VALUES
	('96ea8d8b-3653-4fea-aace-fa40820f6a14', '00000000-0000-0000-0000-000000000001', '7b22dfb0-5524-4fd4-9d19-4516883fbefb', 'ranges', 'c80f3ca1-b007-4b50-b699-a27dea87ad16', NULL, NULL),
	('71b66862-0c8c-4f6a-87aa-1a66db6c2d25', '00000000-0000-0000-0000-000000000001', '72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', 'pieces', 'ebbc6bc3-967c-4f76-9655-721890556061', NULL, NULL),
	('d5c84b71-2a20-4dda-82f6-1f11826f4e9d', '00000000-0000-0000-0000-000000000001', '3e692b77-cebb-4265-9edd-6e8a0d199408', 'out', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', NULL, NULL),
	('6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'done', '608421f5-6d39-4b1f-9b54-7b37f1ae1856', '8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1', NULL),
	('4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', '00000000-0000-0000-0000-000000000001', '13239434-db47-4d47-8d1a-7f51d5f74320', 'ranges', '1dd3712b-542b-4b9a-9d01-72b95479f6ee', NULL, NULL),
	('bb140eed-bf39-40da-8c7a-f66e519cf6f5', '00000000-0000-0000-0000-000000000001', '5ddfe920-4863-48b9-9345-ed118646eccf', 'pieces', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', NULL, NULL),
	('46a40e39-d449-43a0-b53a-f7645c997b50', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'out', '4d4172e0-a987-4b55-8f92-3661a4282979', NULL, NULL),
	('f43555af-7d05-4787-a575-8a28cc94227e', '00000000-0000-0000-0000-000000000001', '02b1badc-afa0-4ea7-80bc-14fe5e592626', 'done', 'bba0678f-8a4a-4d08-8f43-52388e9358ac', NULL, NULL),
	('57733525-e111-4257-a1ce-a6ca9359c6c8', '00000000-0000-0000-0000-000000000001', '0b7a082e-8281-4dbd-ad4b-93b66f2d01df', 'ranges', '662ff08d-7ea0-46a7-9c6b-96cac0822122', NULL, NULL),
	('9bd4c137-96eb-40fd-af23-0ef1f0ca484f', '00000000-0000-0000-0000-000000000001', '57b6b4ae-184f-4608-917b-381f630169e5', 'ranges', '7a5314a7-ae50-4fe4-babe-82797051bc5e', NULL, NULL),
	('881cdeff-c667-4d38-ad56-799b1ac1b79d', '00000000-0000-0000-0000-000000000001', '4e8fa48d-ad42-4b70-8441-27ce4e0b44a8', 'out', '4c2cae13-e331-40f0-b661-092626a34c19', NULL, NULL),
	('f3b05a90-784e-4e10-ae9f-ab29883241c2', '00000000-0000-0000-0000-000000000001', '35cc2957-1807-474a-afb5-6f71619887f8', 'out', 'ee4d195e-1f7d-4d00-a426-2eb89cb4a2bc', NULL, NULL),
	('c7444d5e-a2d2-414a-8a0e-110b712b220a', '00000000-0000-0000-0000-000000000001', 'bac06107-85e1-438c-a7d3-b4eb2523e137', 'ranges', '1381da9e-490b-483d-922b-0810c9c40079', NULL, NULL),
	('32975fb4-49be-47c3-b070-6b1215f3269f', '00000000-0000-0000-0000-000000000001', 'a5b4c9c2-5a52-44b6-8c8c-b1cf8000d388', 'ranges', '40611a67-e23c-4b85-8ef7-d4d972d96956', NULL, NULL),
	('971f62a9-6783-4913-b696-e4464f692d0c', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'out', '239f0d05-108f-4a3d-a2ba-3ea670d56c19', NULL, NULL),
	('baa6d8fe-ee4c-4373-9af3-9b91268bfaa9', '00000000-0000-0000-0000-000000000001', 'c4a6cdd6-2f2f-445c-8144-65d0ac3ff90e', 'out', 'c7dbc3a2-83dc-4123-93b6-b4824427daa1', NULL, NULL),
	('aeffa707-817e-4578-a5ba-94108ad4a995', '00000000-0000-0000-0000-000000000001', 'dfe3b398-7d83-4bbf-9495-d33348341196', 'ranges', '0cd13e94-5f05-471d-bedd-cc0cc4b9e646', NULL, NULL),
	('1ef674a2-cc73-4cee-9bbf-ca10c8181dca', '00000000-0000-0000-0000-000000000001', NULL, 'readings', 'ddc414c8-4776-4af2-82f7-891f5cf61770', NULL, 'readings');
INSERT INTO public.deferred_events VALUES
	('01a1e652-1c47-7565-be02-c238729a2aa1', '35cc2957-1807-474a-afb5-6f71619887f8', false, '2026-11-16 21:45:03.438107+00'),
	('01a1e652-1c65-707f-a554-0fdb2848bbad', '35cc2957-1807-474a-afb5-6f71619887f8', false, '2026-11-16 21:45:03.438107+00');
INSERT INTO public.events VALUES
	('01a1e652-14aa-7c02-ab0a-179423144d3f', '00000000-0000-0000-0000-000000000001', '96ea8d8b-3653-4fea-aace-fa40820f6a14', 'c80f3ca1-b007-4b50-b699-a27dea87ad16', 'p:0-29', '0-29', 0, 29, NULL, '01a1e652-14a9-7987-a785-f3776d33a77c', 1, '2026-11-16 21:45:01.349008+00', '2026-11-16 21:45:01.386+00'),
	('01a1e652-14fa-7f8b-8227-ed6df417b01d', '00000000-0000-0000-0000-000000000001', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-14d6-753b-a4bd-308010684ca5', 1, '2026-11-16 21:45:01.40358+00', '2026-11-16 21:45:01.45261+00'),
	('01a1e652-14fb-7199-8a8e-2b505929224d', '00000000-0000-0000-0000-000000000001', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-14d6-753b-a4bd-308010684ca5', 1, '2026-11-16 21:45:01.40358+00', '2026-11-16 21:45:01.45261+00'),
	('01a1e652-14fb-7231-92fd-df76c674d815', '00000000-0000-0000-0000-000000000001', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061', 'p:20-29', '20-29', 20, 29, NULL, '01a1e652-14d6-753b-a4bd-308010684ca5', 1, '2026-11-16 21:45:01.40358+00', '2026-11-16 21:45:01.45261+00'),
	('01a1e652-15a9-7e0b-882e-6d3768436a87', '00000000-0000-0000-0000-000000000001', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-151a-7c3d-96d5-892c4d1d2c3f', 1, '2026-11-16 21:45:01.593218+00', '2026-11-16 21:45:01.785657+00'),
	('01a1e652-15f4-7f3e-837e-29f1fd1f5a08', '00000000-0000-0000-0000-000000000001', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-151b-72ef-90b1-cd8a88e6ab91', 1, '2026-11-16 21:45:01.674901+00', '2026-11-16 21:45:01.785657+00'),
	('01a1e652-1631-78a1-91c2-b4bec319dafd', '00000000-0000-0000-0000-000000000001', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 'p:20-29', '20-29', 20, 29, NULL, '01a1e652-151b-7446-9f7e-95a0c33df826', 1, '2026-11-16 21:45:01.725732+00', '2026-11-16 21:45:01.785657+00'),
	('01a1e652-16cb-71f6-9a70-0fa9cdbb3c38', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 'ce956e6c-abec-4219-ad4d-36eae62eb369', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-165a-71c8-b735-9b4187b39191', 1, '2026-11-16 21:45:01.896983+00', '2026-11-16 21:45:01.973991+00'),
	('01a1e652-16ec-7cd4-b596-84fc3da53155', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 'ce956e6c-abec-4219-ad4d-36eae62eb369', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-165a-7544-929a-79e2fa4bbde6', 1, '2026-11-16 21:45:01.926618+00', '2026-11-16 21:45:01.973991+00'),
	('01a1e652-1705-714f-bb7e-c0a7d44a851e', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 'ce956e6c-abec-4219-ad4d-36eae62eb369', 'p:20-29', '20-29', 20, 29, NULL, '01a1e652-165a-761e-b853-3ec2ca7c5fa1', 1, '2026-11-16 21:45:01.954754+00', '2026-11-16 21:45:01.973991+00'),
	('01a1e652-1804-7811-9c07-99ad6451d342', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '608421f5-6d39-4b1f-9b54-7b37f1ae1856', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-17aa-70bc-a975-9fe9eb91af74', 1, '2026-11-16 21:45:02.21041+00', '2026-11-16 21:45:02.29333+00'),
	('01a1e652-1826-7a0e-b31e-4715db5d1a22', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '608421f5-6d39-4b1f-9b54-7b37f1ae1856', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-17aa-73fb-abd8-a6eacd746431', 1, '2026-11-16 21:45:02.244519+00', '2026-11-16 21:45:02.29333+00'),
	('01a1e652-183c-72a3-ad33-5a07271776d6', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '608421f5-6d39-4b1f-9b54-7b37f1ae1856', 'p:20-29', '20-29', 20, 29, NULL, '01a1e652-17aa-74a5-8ca6-e70526ba99ee', 1, '2026-11-16 21:45:02.266094+00', '2026-11-16 21:45:02.29333+00'),
	('01a1e652-196e-7a42-80af-88504f93dd67', '00000000-0000-0000-0000-000000000001', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-192d-7aa5-a6f1-c956edb646aa', 1, '2026-11-16 21:45:02.568214+00', '2026-11-16 21:45:02.743876+00'),
	('01a1e652-1a06-78a7-b4ca-398d4880284c', '00000000-0000-0000-0000-000000000001', '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', '1dd3712b-542b-4b9a-9d01-72b95479f6ee', 'p:0-69', '0-69', 0, 69, NULL, '01a1e652-1a06-7557-b17d-9b9540110648', 1, '2026-11-16 21:45:02.723963+00', '2026-11-16 21:45:02.743876+00'),
	('01a1e652-1a22-7d3c-8684-ba2a4dddee9b', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a22-7ec4-ba90-f0eefe9125f7', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a22-7f3f-a546-3a95e0980f08', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:20-29', '20-29', 20, 29, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a22-7faf-a5f5-69f05745c30c', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:30-39', '30-39', 30, 39, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a23-701c-8f04-0aa25c25e590', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:40-49', '40-49', 40, 49, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a23-72fb-b2e3-f7d317a0a837', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:50-59', '50-59', 50, 59, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a23-7389-af0e-78f80bf477b6', '00000000-0000-0000-0000-000000000001', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', 'p:60-69', '60-69', 60, 69, NULL, '01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.757766+00'),
	('01a1e652-1a5f-79de-922b-4c60f5b9465b', '00000000-0000-0000-0000-000000000001', '46a40e39-d449-43a0-b53a-f7645c997b50', '4d4172e0-a987-4b55-8f92-3661a4282979', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-1a26-73fc-9e2b-4d43d2cca76b', 1, '2026-11-16 21:45:02.808891+00', '2026-11-16 21:45:03.213697+00'),
	('01a1e652-1be1-72cb-bf9c-759ebb9da277', '00000000-0000-0000-0000-000000000001', '57733525-e111-4257-a1ce-a6ca9359c6c8', '662ff08d-7ea0-46a7-9c6b-96cac0822122', 'p:0-19', '0-19', 0, 19, NULL, '01a1e652-1be1-703e-8729-062ffd7c4e4b', 1, '2026-11-16 21:45:03.199695+00', '2026-11-16 21:45:03.213697+00'),
	('01a1e652-1c05-780a-8dd5-57b6636fca33', '00000000-0000-0000-0000-000000000001', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', '7a5314a7-ae50-4fe4-babe-82797051bc5e', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-1bee-7315-8d1c-03e36a6d23c6', 1, '2026-11-16 21:45:03.234081+00', '2026-11-16 21:45:03.240107+00'),
	('01a1e652-1c05-799e-ad28-e959574060ce', '00000000-0000-0000-0000-000000000001', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', '7a5314a7-ae50-4fe4-babe-82797051bc5e', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-1bee-7315-8d1c-03e36a6d23c6', 1, '2026-11-16 21:45:03.234081+00', '2026-11-16 21:45:03.240107+00'),
	('01a1e652-1c47-7565-be02-c238729a2aa1', '00000000-0000-0000-0000-000000000001', '881cdeff-c667-4d38-ad56-799b1ac1b79d', '4c2cae13-e331-40f0-b661-092626a34c19', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-1c08-7a49-b39b-b0c4802f5ffc', 1, '2026-11-16 21:45:03.297078+00', '2026-11-16 21:45:03.438107+00'),
	('01a1e652-1c65-707f-a554-0fdb2848bbad', '00000000-0000-0000-0000-000000000001', '881cdeff-c667-4d38-ad56-799b1ac1b79d', '4c2cae13-e331-40f0-b661-092626a34c19', 'p:10-19', '10-19', 10, 19, NULL, '01a1e652-1c08-7e1e-a57c-d6d89a92bd46', 1, '2026-11-16 21:45:03.330647+00', '2026-11-16 21:45:03.438107+00'),
	('01a1e652-1d82-73c7-be62-ceaa9d65d9a9', '00000000-0000-0000-0000-000000000001', '971f62a9-6783-4913-b696-e4464f692d0c', '239f0d05-108f-4a3d-a2ba-3ea670d56c19', 'p:0-9', '0-9', 0, 9, NULL, '01a1e652-1d61-76c0-83af-7dd9c072be8a', 1, '2026-11-16 21:45:03.615955+00', '2026-11-16 21:45:03.634815+00'),
	('01a1e652-1e1d-7c68-8619-5efd62b4d807', '00000000-0000-0000-0000-000000000001', 'aeffa707-817e-4578-a5ba-94108ad4a995', '0cd13e94-5f05-471d-bedd-cc0cc4b9e646', 'p:0-0', '0-0', 0, 0, NULL, '01a1e652-1e1d-78bd-8078-77af1c8a547f', 1, '2026-11-16 21:45:03.770489+00', '2026-11-16 21:45:03.779726+00'),
	('01a1e652-259d-73d0-b695-085e5c8c3d96', '00000000-0000-0000-0000-000000000001', '1ef674a2-cc73-4cee-9bbf-ca10c8181dca', 'ddc414c8-4776-4af2-82f7-891f5cf61770', 'c:1', NULL, NULL, NULL, 1, '01a1e652-1e24-71ad-8fdd-96f7749a6e1c', 1, '2026-11-16 21:45:05.689818+00', '2026-11-16 21:45:05.698217+00'),
	('01a1e652-25ba-7576-b146-0ce218e83b34', '00000000-0000-0000-0000-000000000001', '46a40e39-d449-43a0-b53a-f7645c997b50', '4d4172e0-a987-4b55-8f92-3661a4282979', 'p:50-59', '50-59', 50, 59, NULL, '01a1e652-1a26-7a7a-bc93-2bd988a7fc49', 1, '2026-11-16 21:45:05.720769+00', NULL);
INSERT INTO public.invalidations VALUES
	('33280597-ccd7-4172-b78d-64998e125b5f', '00000000-0000-0000-0000-000000000001', '46a40e39-d449-43a0-b53a-f7645c997b50', '4d4172e0-a987-4b55-8f92-3661a4282979', 'row_range', NULL, 0, 5, NULL, '', 'user:local', NULL, NULL, NULL, '892', '2026-11-16 21:45:03.655428+00', '2026-11-16 21:45:03.782713+00'),
	('0c51aa0a-622f-4012-94bb-e754c83cee0b', '00000000-0000-0000-0000-000000000001', '46a40e39-d449-43a0-b53a-f7645c997b50', '4d4172e0-a987-4b55-8f92-3661a4282979', 'row_range', NULL, 0, 5, NULL, 'wrong prices', 'user:local', NULL, NULL, NULL, '918', '2026-11-16 21:45:05.739255+00', NULL);
INSERT INTO public.job_inputs VALUES
	('d31af67f-0245-47ff-9905-dc324487caa8', 0, 'ranges', '96ea8d8b-3653-4fea-aace-fa40820f6a14', NULL, 'c80f3ca1-b007-4b50-b699-a27dea87ad16'),
	('238bd059-6127-4989-9c7a-1a717d9e37c7', 0, 'pieces', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', NULL, 'ebbc6bc3-967c-4f76-9655-721890556061'),
	('ffb830fb-8e2a-4601-96ec-f1cf06118fd6', 0, 'out', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', NULL, '279c94bd-8583-4e3d-a0ab-c8c686d4fce7'),
	('4d435c76-ce23-42a4-8182-74ceb06dd918', 0, 'out', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', NULL, '279c94bd-8583-4e3d-a0ab-c8c686d4fce7'),
	('d9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', 0, 'out', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', NULL, '279c94bd-8583-4e3d-a0ab-c8c686d4fce7'),
	('d0c05f73-b812-4583-ab25-b7e976196a71', 0, 'ranges', '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', NULL, '1dd3712b-542b-4b9a-9d01-72b95479f6ee'),
	('ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 0, 'pieces', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', NULL, '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa'),
	('dd2c0518-80a5-44cc-921b-f7a6298a7205', 0, 'out', '46a40e39-d449-43a0-b53a-f7645c997b50', NULL, '4d4172e0-a987-4b55-8f92-3661a4282979'),
	('1971261c-b64f-4b91-bd37-5f3389f64ba0', 0, 'ranges', '57733525-e111-4257-a1ce-a6ca9359c6c8', NULL, '662ff08d-7ea0-46a7-9c6b-96cac0822122'),
	('637c4b46-77eb-474a-8512-d8e9e7b3704f', 0, 'split', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', NULL, '7a5314a7-ae50-4fe4-babe-82797051bc5e'),
	('45f89464-15a1-4f39-845e-b2bd60b9848d', 0, 'work', '881cdeff-c667-4d38-ad56-799b1ac1b79d', NULL, '4c2cae13-e331-40f0-b661-092626a34c19'),
	('ac015768-c741-4028-8feb-a2c5565ff1c3', 0, 'ranges', 'c7444d5e-a2d2-414a-8a0e-110b712b220a', NULL, '1381da9e-490b-483d-922b-0810c9c40079'),
	('ba1a56d4-8c38-4737-b80a-caeb13702858', 0, 'split', '32975fb4-49be-47c3-b070-6b1215f3269f', NULL, '40611a67-e23c-4b85-8ef7-d4d972d96956'),
	('703755c6-7e61-4021-9ef9-cc7cdf435b85', 0, 'work', '971f62a9-6783-4913-b696-e4464f692d0c', NULL, '239f0d05-108f-4a3d-a2ba-3ea670d56c19'),
	('4632ecd7-4fb1-461d-bd85-04ed149be843', 0, 'ranges', 'aeffa707-817e-4578-a5ba-94108ad4a995', NULL, '0cd13e94-5f05-471d-bedd-cc0cc4b9e646');
INSERT INTO public.job_outputs VALUES
	('1588c062-1d1c-4428-96a5-3772126cee9e', 0, 'ranges', '96ea8d8b-3653-4fea-aace-fa40820f6a14', 'c80f3ca1-b007-4b50-b699-a27dea87ad16'),
	('d31af67f-0245-47ff-9905-dc324487caa8', 0, 'pieces', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061'),
	('238bd059-6127-4989-9c7a-1a717d9e37c7', 0, 'out', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7'),
	('ffb830fb-8e2a-4601-96ec-f1cf06118fd6', 0, 'done', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 'ce956e6c-abec-4219-ad4d-36eae62eb369'),
	('4d435c76-ce23-42a4-8182-74ceb06dd918', 0, 'done', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '608421f5-6d39-4b1f-9b54-7b37f1ae1856'),
	('d9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', 0, 'done', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1'),
	('ef517cec-abf2-4b86-a740-b8d31a555be3', 0, 'ranges', '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', '1dd3712b-542b-4b9a-9d01-72b95479f6ee'),
	('d0c05f73-b812-4583-ab25-b7e976196a71', 0, 'pieces', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa'),
	('ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 0, 'out', '46a40e39-d449-43a0-b53a-f7645c997b50', '4d4172e0-a987-4b55-8f92-3661a4282979'),
	('dd2c0518-80a5-44cc-921b-f7a6298a7205', 0, 'done', 'f43555af-7d05-4787-a575-8a28cc94227e', 'bba0678f-8a4a-4d08-8f43-52388e9358ac'),
	('c71325cb-c539-476f-94bb-682f38489442', 0, 'ranges', '57733525-e111-4257-a1ce-a6ca9359c6c8', '662ff08d-7ea0-46a7-9c6b-96cac0822122'),
	('1971261c-b64f-4b91-bd37-5f3389f64ba0', 0, 'ranges', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', '7a5314a7-ae50-4fe4-babe-82797051bc5e'),
	('637c4b46-77eb-474a-8512-d8e9e7b3704f', 0, 'out', '881cdeff-c667-4d38-ad56-799b1ac1b79d', '4c2cae13-e331-40f0-b661-092626a34c19'),
	('45f89464-15a1-4f39-845e-b2bd60b9848d', 0, 'out', 'f3b05a90-784e-4e10-ae9f-ab29883241c2', 'ee4d195e-1f7d-4d00-a426-2eb89cb4a2bc'),
	('1c2a204d-0578-4877-8780-391a9b82879d', 0, 'ranges', 'c7444d5e-a2d2-414a-8a0e-110b712b220a', '1381da9e-490b-483d-922b-0810c9c40079'),
	('ac015768-c741-4028-8feb-a2c5565ff1c3', 0, 'ranges', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956'),
	('ba1a56d4-8c38-4737-b80a-caeb13702858', 0, 'out', '971f62a9-6783-4913-b696-e4464f692d0c', '239f0d05-108f-4a3d-a2ba-3ea670d56c19'),
	('703755c6-7e61-4021-9ef9-cc7cdf435b85', 0, 'out', 'baa6d8fe-ee4c-4373-9af3-9b91268bfaa9', 'c7dbc3a2-83dc-4123-93b6-b4824427daa1'),
	('d1accd26-b142-406e-83d6-21871df4874e', 0, 'ranges', 'aeffa707-817e-4578-a5ba-94108ad4a995', '0cd13e94-5f05-471d-bedd-cc0cc4b9e646'),
	('4632ecd7-4fb1-461d-bd85-04ed149be843', 0, 'out', '1ef674a2-cc73-4cee-9bbf-ca10c8181dca', 'ddc414c8-4776-4af2-82f7-891f5cf61770');
INSERT INTO public.job_revisions VALUES
	('1588c062-1d1c-4428-96a5-3772126cee9e', '7b22dfb0-5524-4fd4-9d19-4516883fbefb', 'be11e527010ed0fa6a19a8cb1deb0913327bb45a32b575f5704e5d0686d635d8:091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', 'source', 'dispatcher', 'source', '{}', '{"kind": "manual", "options": {}, "schedule": null}', 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "request", "config": {}, "inputs": [], "source": {"kind": "manual", "options": {}, "schedule": null}, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "source", "priority": "normal", "bootstrap": null, "activation": "source", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('d31af67f-0245-47ff-9905-dc324487caa8', '72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', 'f0fbc1c652776a54c31fbaf729e4ed0ddb23a6be8e5750bb57465f1fd0f22ca6:70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8', '70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8', 'reactive', 'dispatcher', 'range_splitter', '{"size": 10}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "split", "config": {"size": 10}, "inputs": [{"job": "request", "name": "ranges", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["pieces"], "runtime": "dispatcher", "secrets": [], "operator": "range_splitter", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('238bd059-6127-4989-9c7a-1a717d9e37c7', '3e692b77-cebb-4265-9edd-6e8a0d199408', '3b5a2daec1281d61ffedba6b74deb988ed0cf567c0a1045fd13c8b83e94ea891:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991', '8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1 FROM pieces"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "work", "config": {"sql": "SELECT 1 FROM pieces"}, "inputs": [{"job": "split", "name": "pieces", "where": null, "output": "pieces", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('ffb830fb-8e2a-4601-96ec-f1cf06118fd6', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', '7b7d787c460a61faba07d26e476252d98eb4cb30fdf25576552d6c9d42e47ebc:53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e', '53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1 FROM out"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "after", "config": {"sql": "SELECT 1 FROM out"}, "inputs": [{"job": "work", "name": "out", "where": null, "output": "out", "dataset": null}], "source": null, "outputs": ["done"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('4d435c76-ce23-42a4-8182-74ceb06dd918', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'e7af737da33df0e544eaca22e129d793c4fd16cb6df1f10ea57533a81ca37d8a:2ca9c3b14eb9428ed21d52e9c1cf0b33ffacc06ed736ffdedf746e9f3a5887a4', '2ca9c3b14eb9428ed21d52e9c1cf0b33ffacc06ed736ffdedf746e9f3a5887a4', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 2 FROM out"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "after", "config": {"sql": "SELECT 2 FROM out"}, "inputs": [{"job": "work", "name": "out", "where": null, "output": "out", "dataset": null}], "source": null, "outputs": ["done"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('d9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'ba9b0cd25e75cc8077db6bab482c5ebc022b15c66404d060a8e88479e171cc64:57152662a5d106c68a2d6462a7e2242d8d9a791f925cf6a771f7568c76156c63', '57152662a5d106c68a2d6462a7e2242d8d9a791f925cf6a771f7568c76156c63', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 3 FROM out"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "after", "config": {"sql": "SELECT 3 FROM out"}, "inputs": [{"job": "work", "name": "out", "where": null, "output": "out", "dataset": null}], "source": null, "outputs": ["done"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('ef517cec-abf2-4b86-a740-b8d31a555be3', '13239434-db47-4d47-8d1a-7f51d5f74320', 'be11e527010ed0fa6a19a8cb1deb0913327bb45a32b575f5704e5d0686d635d8:091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', 'source', 'dispatcher', 'source', '{}', '{"kind": "manual", "options": {}, "schedule": null}', 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "request", "config": {}, "inputs": [], "source": {"kind": "manual", "options": {}, "schedule": null}, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "source", "priority": "normal", "bootstrap": null, "activation": "source", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('d0c05f73-b812-4583-ab25-b7e976196a71', '5ddfe920-4863-48b9-9345-ed118646eccf', 'f0fbc1c652776a54c31fbaf729e4ed0ddb23a6be8e5750bb57465f1fd0f22ca6:70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8', '70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8', 'reactive', 'dispatcher', 'range_splitter', '{"size": 10}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "split", "config": {"size": 10}, "inputs": [{"job": "request", "name": "ranges", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["pieces"], "runtime": "dispatcher", "secrets": [], "operator": "range_splitter", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', '3b5a2daec1281d61ffedba6b74deb988ed0cf567c0a1045fd13c8b83e94ea891:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991', '8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1 FROM pieces"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "work", "config": {"sql": "SELECT 1 FROM pieces"}, "inputs": [{"job": "split", "name": "pieces", "where": null, "output": "pieces", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('dd2c0518-80a5-44cc-921b-f7a6298a7205', '02b1badc-afa0-4ea7-80bc-14fe5e592626', '7b7d787c460a61faba07d26e476252d98eb4cb30fdf25576552d6c9d42e47ebc:53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e', '53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1 FROM out"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "after", "config": {"sql": "SELECT 1 FROM out"}, "inputs": [{"job": "work", "name": "out", "where": null, "output": "out", "dataset": null}], "source": null, "outputs": ["done"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('c71325cb-c539-476f-94bb-682f38489442', '0b7a082e-8281-4dbd-ad4b-93b66f2d01df', 'be11e527010ed0fa6a19a8cb1deb0913327bb45a32b575f5704e5d0686d635d8:091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', 'source', 'dispatcher', 'source', '{}', '{"kind": "manual", "options": {}, "schedule": null}', 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "request", "config": {}, "inputs": [], "source": {"kind": "manual", "options": {}, "schedule": null}, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "source", "priority": "normal", "bootstrap": null, "activation": "source", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('1971261c-b64f-4b91-bd37-5f3389f64ba0', '57b6b4ae-184f-4608-917b-381f630169e5', '46befad6f6afe2987dffe9fa7fc9dcc031e60f3287103cbd3711b3d782ef6d8f:168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44', '168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44', 'reactive', 'dispatcher', 'range_splitter', '{"size": 10}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "split", "config": {"size": 10}, "inputs": [{"job": "request", "name": "ranges", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "range_splitter", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('637c4b46-77eb-474a-8512-d8e9e7b3704f', '4e8fa48d-ad42-4b70-8441-27ce4e0b44a8', '23fd46329b10342b8912e9261a9d91c3675afb5a2397eec7589e2ea4a325b36c:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', 'bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "work", "config": {"sql": "SELECT 1"}, "inputs": [{"job": "split", "name": "split", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('45f89464-15a1-4f39-845e-b2bd60b9848d', '35cc2957-1807-474a-afb5-6f71619887f8', '1be0e36f59ecaca9e147fda865008c9e8b9a688d423bc779bd67f1cf9109677f:b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9', 'b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "after", "config": {"sql": "SELECT 1"}, "inputs": [{"job": "work", "name": "work", "where": null, "output": "out", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('1c2a204d-0578-4877-8780-391a9b82879d', 'bac06107-85e1-438c-a7d3-b4eb2523e137', 'be11e527010ed0fa6a19a8cb1deb0913327bb45a32b575f5704e5d0686d635d8:091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', 'source', 'dispatcher', 'source', '{}', '{"kind": "manual", "options": {}, "schedule": null}', 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "request", "config": {}, "inputs": [], "source": {"kind": "manual", "options": {}, "schedule": null}, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "source", "priority": "normal", "bootstrap": null, "activation": "source", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('ac015768-c741-4028-8feb-a2c5565ff1c3', 'a5b4c9c2-5a52-44b6-8c8c-b1cf8000d388', '46befad6f6afe2987dffe9fa7fc9dcc031e60f3287103cbd3711b3d782ef6d8f:168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44', '168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44', 'reactive', 'dispatcher', 'range_splitter', '{"size": 10}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "split", "config": {"size": 10}, "inputs": [{"job": "request", "name": "ranges", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "range_splitter", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('ba1a56d4-8c38-4737-b80a-caeb13702858', '0e6938fc-b797-484e-a331-5f2eb697f951', '23fd46329b10342b8912e9261a9d91c3675afb5a2397eec7589e2ea4a325b36c:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', 'bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "work", "config": {"sql": "SELECT 1"}, "inputs": [{"job": "split", "name": "split", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('703755c6-7e61-4021-9ef9-cc7cdf435b85', 'c4a6cdd6-2f2f-445c-8144-65d0ac3ff90e', '1be0e36f59ecaca9e147fda865008c9e8b9a688d423bc779bd67f1cf9109677f:b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9', 'b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1"}', NULL, 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "after", "config": {"sql": "SELECT 1"}, "inputs": [{"job": "work", "name": "work", "where": null, "output": "out", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('d1accd26-b142-406e-83d6-21871df4874e', 'dfe3b398-7d83-4bbf-9495-d33348341196', 'be11e527010ed0fa6a19a8cb1deb0913327bb45a32b575f5704e5d0686d635d8:091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', '091af7176de0d2cea84c784043a82d94ac6a6635bc521944903aed7b8b85bed8', 'source', 'dispatcher', 'source', '{}', '{"kind": "manual", "options": {}, "schedule": null}', 'PerPartition', 'replace', '{}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "request", "config": {}, "inputs": [], "source": {"kind": "manual", "options": {}, "schedule": null}, "outputs": ["ranges"], "runtime": "dispatcher", "secrets": [], "operator": "source", "priority": "normal", "bootstrap": null, "activation": "source", "unique_key": [], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "replace", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL),
	('4632ecd7-4fb1-461d-bd85-04ed149be843', '03fb9e3e-6c3f-44f3-a19f-1687f119c0d8', '859a27016b7b377b351fd58e8d4053dee3eb4b90c0aac414a8fb3bfc98954244:3c9a7a1acb322f0e3513bbeb4cf452654b3431a84637ba5fe612b638c2a37219', '3c9a7a1acb322f0e3513bbeb4cf452654b3431a84637ba5fe612b638c2a37219', 'reactive', 'ecs_python', 'sql', '{"sql": "SELECT 1 FROM ranges"}', NULL, 'PerPartition', 'append', '{id}', 3, 3600, 120, 'normal', NULL, NULL, NULL, '{"udf": null, "name": "collect", "config": {"sql": "SELECT 1 FROM ranges"}, "inputs": [{"job": "request", "name": "ranges", "where": null, "output": "ranges", "dataset": null}], "source": null, "outputs": ["out"], "runtime": "ecs_python", "secrets": [], "operator": "sql", "priority": "normal", "bootstrap": null, "activation": "reactive", "unique_key": ["id"], "max_attempts": 3, "max_queue_age": null, "max_concurrency": null, "max_queue_depth": null, "timeout_seconds": 3600, "update_strategy": "append", "execution_strategy": "PerPartition", "heartbeat_timeout_seconds": 120}', NULL, '{}', NULL);
INSERT INTO public.jobs VALUES
	('7b22dfb0-5524-4fd4-9d19-4516883fbefb', '00000000-0000-0000-0000-000000000001', '2811befd-ccde-476d-96a6-03cdcff33619', 'request', '1588c062-1d1c-4428-96a5-3772126cee9e', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', '00000000-0000-0000-0000-000000000001', '2811befd-ccde-476d-96a6-03cdcff33619', 'split', 'd31af67f-0245-47ff-9905-dc324487caa8', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('3e692b77-cebb-4265-9edd-6e8a0d199408', '00000000-0000-0000-0000-000000000001', '2811befd-ccde-476d-96a6-03cdcff33619', 'work', '238bd059-6127-4989-9c7a-1a717d9e37c7', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', '00000000-0000-0000-0000-000000000001', '2811befd-ccde-476d-96a6-03cdcff33619', 'after', '4d435c76-ce23-42a4-8182-74ceb06dd918', true, NULL, NULL, 'd9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', NULL, NULL, NULL),
	('13239434-db47-4d47-8d1a-7f51d5f74320', '00000000-0000-0000-0000-000000000001', 'fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', 'request', 'ef517cec-abf2-4b86-a740-b8d31a555be3', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('5ddfe920-4863-48b9-9345-ed118646eccf', '00000000-0000-0000-0000-000000000001', 'fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', 'split', 'd0c05f73-b812-4583-ab25-b7e976196a71', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('e832b122-4fa9-4c64-98d8-2ab084a1ab94', '00000000-0000-0000-0000-000000000001', 'fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', 'work', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('02b1badc-afa0-4ea7-80bc-14fe5e592626', '00000000-0000-0000-0000-000000000001', 'fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', 'after', 'dd2c0518-80a5-44cc-921b-f7a6298a7205', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('0b7a082e-8281-4dbd-ad4b-93b66f2d01df', '00000000-0000-0000-0000-000000000001', '5bb0efc9-41df-4016-8083-9da9235f3ad2', 'request', 'c71325cb-c539-476f-94bb-682f38489442', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('57b6b4ae-184f-4608-917b-381f630169e5', '00000000-0000-0000-0000-000000000001', '5bb0efc9-41df-4016-8083-9da9235f3ad2', 'split', '1971261c-b64f-4b91-bd37-5f3389f64ba0', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('4e8fa48d-ad42-4b70-8441-27ce4e0b44a8', '00000000-0000-0000-0000-000000000001', '5bb0efc9-41df-4016-8083-9da9235f3ad2', 'work', '637c4b46-77eb-474a-8512-d8e9e7b3704f', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('35cc2957-1807-474a-afb5-6f71619887f8', '00000000-0000-0000-0000-000000000001', '5bb0efc9-41df-4016-8083-9da9235f3ad2', 'after', '45f89464-15a1-4f39-845e-b2bd60b9848d', true, '2026-11-16 21:45:03.424617+00', 'local (maintenance)', NULL, '2026-11-16 21:45:03.424617+00', 'local (maintenance)', NULL),
	('bac06107-85e1-438c-a7d3-b4eb2523e137', '00000000-0000-0000-0000-000000000001', '58ae8585-4842-43e7-afa1-7d4071b4021e', 'request', '1c2a204d-0578-4877-8780-391a9b82879d', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('a5b4c9c2-5a52-44b6-8c8c-b1cf8000d388', '00000000-0000-0000-0000-000000000001', '58ae8585-4842-43e7-afa1-7d4071b4021e', 'split', 'ac015768-c741-4028-8feb-a2c5565ff1c3', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('0e6938fc-b797-484e-a331-5f2eb697f951', '00000000-0000-0000-0000-000000000001', '58ae8585-4842-43e7-afa1-7d4071b4021e', 'work', 'ba1a56d4-8c38-4737-b80a-caeb13702858', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('c4a6cdd6-2f2f-445c-8144-65d0ac3ff90e', '00000000-0000-0000-0000-000000000001', '58ae8585-4842-43e7-afa1-7d4071b4021e', 'after', '703755c6-7e61-4021-9ef9-cc7cdf435b85', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('dfe3b398-7d83-4bbf-9495-d33348341196', '00000000-0000-0000-0000-000000000001', 'ed3b63ba-f9e0-4f23-b356-a360e7fd3f9d', 'request', 'd1accd26-b142-406e-83d6-21871df4874e', true, NULL, NULL, NULL, NULL, NULL, NULL),
	('03fb9e3e-6c3f-44f3-a19f-1687f119c0d8', '00000000-0000-0000-0000-000000000001', 'ed3b63ba-f9e0-4f23-b356-a360e7fd3f9d', 'collect', '4632ecd7-4fb1-461d-bd85-04ed149be843', true, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.memberships VALUES
	('00000000-0000-0000-0000-000000000001', 'local', 'admin', '2026-11-16 21:45:00.060443+00', NULL);
INSERT INTO public.orgs VALUES
	('00000000-0000-0000-0000-000000000001', 'local', '2026-11-16 21:45:00.060443+00');
INSERT INTO public.outbox OVERRIDING SYSTEM VALUE VALUES
	(70, 'route_event', '', '01a1e652-25ba-7576-b146-0ce218e83b34', NULL, 0, '2026-11-16 21:45:05.720769+00', NULL, NULL, '2026-11-16 21:45:05.720769+00'),
	(71, 'route_invalidation', '', '0c51aa0a-622f-4012-94bb-e754c83cee0b', NULL, 0, '2026-11-16 21:45:05.739255+00', NULL, NULL, '2026-11-16 21:45:05.739255+00');
INSERT INTO public.partition_inputs VALUES
	('ce956e6c-abec-4219-ad4d-36eae62eb369', '0-9', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '0-9', '01a1e652-151a-7c3d-96d5-892c4d1d2c3f', 1, '01a1e652-165a-71c8-b735-9b4187b39191', 1),
	('ce956e6c-abec-4219-ad4d-36eae62eb369', '10-19', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '10-19', '01a1e652-151b-72ef-90b1-cd8a88e6ab91', 1, '01a1e652-165a-7544-929a-79e2fa4bbde6', 1),
	('ce956e6c-abec-4219-ad4d-36eae62eb369', '20-29', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '20-29', '01a1e652-151b-7446-9f7e-95a0c33df826', 1, '01a1e652-165a-761e-b853-3ec2ca7c5fa1', 1),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', '0-9', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '0-9', '01a1e652-151a-7c3d-96d5-892c4d1d2c3f', 1, '01a1e652-17aa-70bc-a975-9fe9eb91af74', 1),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', '10-19', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '10-19', '01a1e652-151b-72ef-90b1-cd8a88e6ab91', 1, '01a1e652-17aa-73fb-abd8-a6eacd746431', 1),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', '20-29', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '20-29', '01a1e652-151b-7446-9f7e-95a0c33df826', 1, '01a1e652-17aa-74a5-8ca6-e70526ba99ee', 1),
	('8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1', '0-9', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '0-9', '01a1e652-151a-7c3d-96d5-892c4d1d2c3f', 1, '01a1e652-192d-7aa5-a6f1-c956edb646aa', 1);
INSERT INTO public.partitions VALUES
	('279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 4, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/d5c84b71-2a20-4dda-82f6-1f11826f4e9d/279c94bd-8583-4e3d-a0ab-c8c686d4fce7/01a1e652-151a-7c3d-96d5-892c4d1d2c3f/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-151a-7c3d-96d5-892c4d1d2c3f', 1, '2026-11-16 21:45:01.593218+00', '795', '794:794:'),
	('279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 4, '10-19', 10, 19, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/d5c84b71-2a20-4dda-82f6-1f11826f4e9d/279c94bd-8583-4e3d-a0ab-c8c686d4fce7/01a1e652-151b-72ef-90b1-cd8a88e6ab91/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-151b-72ef-90b1-cd8a88e6ab91', 1, '2026-11-16 21:45:01.674901+00', '797', '796:796:'),
	('279c94bd-8583-4e3d-a0ab-c8c686d4fce7', 4, '20-29', 20, 29, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/d5c84b71-2a20-4dda-82f6-1f11826f4e9d/279c94bd-8583-4e3d-a0ab-c8c686d4fce7/01a1e652-151b-7446-9f7e-95a0c33df826/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-151b-7446-9f7e-95a0c33df826', 1, '2026-11-16 21:45:01.725732+00', '799', '798:798:'),
	('ce956e6c-abec-4219-ad4d-36eae62eb369', 1, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/ce956e6c-abec-4219-ad4d-36eae62eb369/01a1e652-165a-71c8-b735-9b4187b39191/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-165a-71c8-b735-9b4187b39191', 1, '2026-11-16 21:45:01.896983+00', '805', '804:804:'),
	('ce956e6c-abec-4219-ad4d-36eae62eb369', 1, '10-19', 10, 19, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/ce956e6c-abec-4219-ad4d-36eae62eb369/01a1e652-165a-7544-929a-79e2fa4bbde6/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-165a-7544-929a-79e2fa4bbde6', 1, '2026-11-16 21:45:01.926618+00', '807', '806:806:'),
	('ce956e6c-abec-4219-ad4d-36eae62eb369', 1, '20-29', 20, 29, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/ce956e6c-abec-4219-ad4d-36eae62eb369/01a1e652-165a-761e-b853-3ec2ca7c5fa1/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-165a-761e-b853-3ec2ca7c5fa1', 1, '2026-11-16 21:45:01.954754+00', '809', '808:808:'),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', 5, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/608421f5-6d39-4b1f-9b54-7b37f1ae1856/01a1e652-17aa-70bc-a975-9fe9eb91af74/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-17aa-70bc-a975-9fe9eb91af74', 1, '2026-11-16 21:45:02.21041+00', '817', '816:816:'),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', 5, '10-19', 10, 19, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/608421f5-6d39-4b1f-9b54-7b37f1ae1856/01a1e652-17aa-73fb-abd8-a6eacd746431/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-17aa-73fb-abd8-a6eacd746431', 1, '2026-11-16 21:45:02.244519+00', '819', '818:818:'),
	('608421f5-6d39-4b1f-9b54-7b37f1ae1856', 5, '20-29', 20, 29, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/608421f5-6d39-4b1f-9b54-7b37f1ae1856/01a1e652-17aa-74a5-8ca6-e70526ba99ee/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-17aa-74a5-8ca6-e70526ba99ee', 1, '2026-11-16 21:45:02.266094+00', '821', '820:820:'),
	('8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1', 9, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/6d2bf7e2-0287-4cbb-8e8a-81d3695caa97/8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1/01a1e652-192d-7aa5-a6f1-c956edb646aa/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-192d-7aa5-a6f1-c956edb646aa', 1, '2026-11-16 21:45:02.568214+00', '830', '829:829:'),
	('4d4172e0-a987-4b55-8f92-3661a4282979', 14, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/46a40e39-d449-43a0-b53a-f7645c997b50/4d4172e0-a987-4b55-8f92-3661a4282979/01a1e652-1a26-73fc-9e2b-4d43d2cca76b/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-1a26-73fc-9e2b-4d43d2cca76b', 1, '2026-11-16 21:45:02.808891+00', '843', '842:842:'),
	('4c2cae13-e331-40f0-b661-092626a34c19', 18, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/881cdeff-c667-4d38-ad56-799b1ac1b79d/4c2cae13-e331-40f0-b661-092626a34c19/01a1e652-1c08-7a49-b39b-b0c4802f5ffc/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-1c08-7a49-b39b-b0c4802f5ffc', 1, '2026-11-16 21:45:03.297078+00', '874', '873:873:'),
	('4c2cae13-e331-40f0-b661-092626a34c19', 18, '10-19', 10, 19, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/881cdeff-c667-4d38-ad56-799b1ac1b79d/4c2cae13-e331-40f0-b661-092626a34c19/01a1e652-1c08-7e1e-a57c-d6d89a92bd46/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-1c08-7e1e-a57c-d6d89a92bd46', 1, '2026-11-16 21:45:03.330647+00', '876', '875:875:'),
	('239f0d05-108f-4a3d-a2ba-3ea670d56c19', 22, '0-9', 0, 9, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/971f62a9-6783-4913-b696-e4464f692d0c/239f0d05-108f-4a3d-a2ba-3ea670d56c19/01a1e652-1d61-76c0-83af-7dd9c072be8a/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-1d61-76c0-83af-7dd9c072be8a', 1, '2026-11-16 21:45:03.615955+00', '887', '886:886:'),
	('4d4172e0-a987-4b55-8f92-3661a4282979', 14, '50-59', 50, 59, '{"glob": "*.parquet", "bucket": "trace", "prefix": "cold/datasets/46a40e39-d449-43a0-b53a-f7645c997b50/4d4172e0-a987-4b55-8f92-3661a4282979/01a1e652-1a26-7a7a-bc93-2bd988a7fc49/1/", "scheme": "file"}', 3, 4, '[]', '01a1e652-1a26-7a7a-bc93-2bd988a7fc49', 1, '2026-11-16 21:45:05.720769+00', '917', '916:916:');
INSERT INTO public.pauses VALUES
	('35cc2957-1807-474a-afb5-6f71619887f8', NULL, 'local', 'normal', 'maintenance', '2026-11-16 21:45:03.424617+00');
INSERT INTO public.publications VALUES
	('00000000-0000-0000-0000-000000000001', 'orders_out', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'orders_done', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'states_out', '46a40e39-d449-43a0-b53a-f7645c997b50', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'states_done', 'f43555af-7d05-4787-a575-8a28cc94227e', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'held_work', '881cdeff-c667-4d38-ad56-799b1ac1b79d', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'held_after', 'f3b05a90-784e-4e10-ae9f-ab29883241c2', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'history_work', '971f62a9-6783-4913-b696-e4464f692d0c', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'history_after', 'baa6d8fe-ee4c-4373-9af3-9b91268bfaa9', '', 'parquet', 'replace', NULL),
	('00000000-0000-0000-0000-000000000001', 'readings', '1ef674a2-cc73-4cee-9bbf-ca10c8181dca', '', 'postgres', 'buffered', '[{"name": "id", "type": "string", "nullable": false}, {"name": "n", "type": "long", "nullable": true}]');
INSERT INTO public.reconciled_events VALUES
	(true, '-infinity');
INSERT INTO public.rollout_targets VALUES
	('a8cb6a45-b186-493d-954c-9b5936b63adb', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', 'ce956e6c-abec-4219-ad4d-36eae62eb369', '608421f5-6d39-4b1f-9b54-7b37f1ae1856'),
	('634a7d85-16f5-4940-a65e-eced1313ef06', '6d2bf7e2-0287-4cbb-8e8a-81d3695caa97', '608421f5-6d39-4b1f-9b54-7b37f1ae1856', '8d82dd16-c1e4-4d6d-8287-b4fb92f19ad1');
INSERT INTO public.rollouts VALUES
	('1155a1ac-b733-44d5-a52a-392736c1d2a6', '2811befd-ccde-476d-96a6-03cdcff33619', '7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', NULL, 'complete', '2026-11-16 21:45:01.031853+00', '2026-11-16 21:45:01.031853+00'),
	('a8cb6a45-b186-493d-954c-9b5936b63adb', '2811befd-ccde-476d-96a6-03cdcff33619', '53135ec1-094d-4ea6-82ab-d89588125567', '7c4f93f1-c7db-47ca-bc44-33c13c34c1b7', 'complete', '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.39733+00'),
	('634a7d85-16f5-4940-a65e-eced1313ef06', '2811befd-ccde-476d-96a6-03cdcff33619', '0a16ce4b-8d70-42d7-ad19-97cffd8f44b6', '53135ec1-094d-4ea6-82ab-d89588125567', 'building', '2026-11-16 21:45:02.457704+00', NULL),
	('4d81effc-1017-4d96-8aa9-43b65dba48cb', 'fb4cb50f-7e74-44bd-9236-c4d433e5b5f6', '99dc7438-e662-48c1-b039-253009c08680', NULL, 'complete', '2026-11-16 21:45:02.605745+00', '2026-11-16 21:45:02.605745+00'),
	('0f787835-c2e9-4675-bf1b-bf9147d0be01', '5bb0efc9-41df-4016-8083-9da9235f3ad2', 'baaa9597-b5e5-4509-ac0f-11bf5a9962ad', NULL, 'complete', '2026-11-16 21:45:03.099648+00', '2026-11-16 21:45:03.099648+00'),
	('8ab8f9d9-8151-40d2-b05e-f184a245f5bd', '58ae8585-4842-43e7-afa1-7d4071b4021e', 'fdaadc00-a3c9-4d48-8dd6-0d8884ceaf90', NULL, 'complete', '2026-11-16 21:45:03.469828+00', '2026-11-16 21:45:03.469828+00'),
	('84f63c26-d7fe-4b59-a774-85a4e574d1a9', 'ed3b63ba-f9e0-4f23-b356-a360e7fd3f9d', '07c6dd71-665c-460a-86e9-e0b036bd298b', NULL, 'complete', '2026-11-16 21:45:03.6787+00', '2026-11-16 21:45:03.6787+00');
INSERT INTO public.schema_migrations VALUES
	('0001_skeleton.sql', '2026-11-16 21:45:00.060443+00'),
	('0002_retention_by_generation.sql', '2026-11-16 21:45:00.060443+00'),
	('0003_generations.sql', '2026-11-16 21:45:00.060443+00'),
	('0004_invalidations.sql', '2026-11-16 21:45:00.060443+00'),
	('0005_backpressure.sql', '2026-11-16 21:45:00.060443+00'),
	('0006_backfills.sql', '2026-11-16 21:45:00.060443+00'),
	('0007_users.sql', '2026-11-16 21:45:00.060443+00'),
	('0008_changes.sql', '2026-11-16 21:45:00.060443+00'),
	('0009_operator_caps.sql', '2026-11-16 21:45:00.060443+00'),
	('0010_always_on.sql', '2026-11-16 21:45:00.060443+00'),
	('0010_paused_jobs.sql', '2026-11-16 21:45:00.060443+00'),
	('0011_waiting_answers.sql', '2026-11-16 21:45:00.060443+00'),
	('0012_buffered.sql', '2026-11-16 21:45:00.060443+00'),
	('0013_retention.sql', '2026-11-16 21:45:00.060443+00'),
	('0014_generation_columns.sql', '2026-11-16 21:45:00.060443+00'),
	('0015_waiting_batches.sql', '2026-11-16 21:45:00.060443+00'),
	('0016_ordered_task_ids.sql', '2026-11-16 21:45:00.060443+00'),
	('0017_queue_of_a_runtime.sql', '2026-11-16 21:45:00.060443+00');
INSERT INTO public.task_attempts VALUES
	('01a1e652-14d6-753b-a4bd-308010684ca5', 1, 'dispatcher:vm:2761', '2026-11-16 21:45:01.40358+00', '2026-11-16 21:45:01.40358+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-151a-7c3d-96d5-892c4d1d2c3f', 1, 'w1', '2026-11-16 21:45:01.552469+00', '2026-11-16 21:45:01.593218+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-151b-72ef-90b1-cd8a88e6ab91', 1, 'w1', '2026-11-16 21:45:01.66111+00', '2026-11-16 21:45:01.674901+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-151b-7446-9f7e-95a0c33df826', 1, 'w1', '2026-11-16 21:45:01.720339+00', '2026-11-16 21:45:01.725732+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-165a-71c8-b735-9b4187b39191', 1, 'w1', '2026-11-16 21:45:01.88222+00', '2026-11-16 21:45:01.896983+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-165a-7544-929a-79e2fa4bbde6', 1, 'w1', '2026-11-16 21:45:01.920484+00', '2026-11-16 21:45:01.926618+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-165a-761e-b853-3ec2ca7c5fa1', 1, 'w1', '2026-11-16 21:45:01.947317+00', '2026-11-16 21:45:01.954754+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-17aa-70bc-a975-9fe9eb91af74', 1, 'w1', '2026-11-16 21:45:02.192478+00', '2026-11-16 21:45:02.21041+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-17aa-73fb-abd8-a6eacd746431', 1, 'w1', '2026-11-16 21:45:02.232479+00', '2026-11-16 21:45:02.244519+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-17aa-74a5-8ca6-e70526ba99ee', 1, 'w1', '2026-11-16 21:45:02.259294+00', '2026-11-16 21:45:02.266094+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-192d-7aa5-a6f1-c956edb646aa', 1, 'w1', '2026-11-16 21:45:02.553064+00', '2026-11-16 21:45:02.568214+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1a18-74c4-a643-93b1a19b41f6', 1, 'dispatcher:vm:2761', '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.747461+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1a26-73fc-9e2b-4d43d2cca76b', 1, 'w1', '2026-11-16 21:45:02.79412+00', '2026-11-16 21:45:02.808891+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1a26-78cc-8cfc-2655fd315939', 1, 'w1', '2026-11-16 21:45:02.858992+00', '2026-11-16 21:45:02.876448+00', 'Failed', NULL, NULL, 'node is down'),
	('01a1e652-1a26-79f3-8909-9b46eebd8b24', 1, 'w1', '2026-11-16 21:45:02.936464+00', '2026-11-16 21:45:02.947182+00', 'Failed', NULL, NULL, 'division by zero'),
	('01a1e652-1a26-79f3-8909-9b46eebd8b24', 2, 'w1', '2026-11-16 21:45:03.000552+00', '2026-11-16 21:45:03.005176+00', 'Failed', NULL, NULL, 'division by zero'),
	('01a1e652-1a26-79f3-8909-9b46eebd8b24', 3, 'w1', '2026-11-16 21:45:03.044476+00', '2026-11-16 21:45:03.051741+00', 'Failed', NULL, NULL, 'division by zero'),
	('01a1e652-1bee-7315-8d1c-03e36a6d23c6', 1, 'dispatcher:vm:2761', '2026-11-16 21:45:03.234081+00', '2026-11-16 21:45:03.234081+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1c08-7a49-b39b-b0c4802f5ffc', 1, 'w1', '2026-11-16 21:45:03.284479+00', '2026-11-16 21:45:03.297078+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1c08-7e1e-a57c-d6d89a92bd46', 1, 'w1', '2026-11-16 21:45:03.320462+00', '2026-11-16 21:45:03.330647+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1d61-76c0-83af-7dd9c072be8a', 1, 'w1', '2026-11-16 21:45:03.607431+00', '2026-11-16 21:45:03.615955+00', 'Completed', NULL, NULL, NULL),
	('01a1e652-1a26-7a7a-bc93-2bd988a7fc49', 1, 'w1', '2026-11-16 21:45:05.712475+00', '2026-11-16 21:45:05.720769+00', 'Completed', NULL, NULL, NULL);
INSERT INTO public.task_tally_corrections OVERRIDING SYSTEM VALUE VALUES
	(1, '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'Failed', '849'),
	(2, '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'Failed', '853');
INSERT INTO public.tasks VALUES
	('01a1e652-14a9-7987-a785-f3776d33a77c', '00000000-0000-0000-0000-000000000001', '7b22dfb0-5524-4fd4-9d19-4516883fbefb', '1588c062-1d1c-4428-96a5-3772126cee9e', 'dispatcher', false, 'trigger:c80f3ca1-b007-4b50-b699-a27dea87ad16:0-29', '96ea8d8b-3653-4fea-aace-fa40820f6a14', 'c80f3ca1-b007-4b50-b699-a27dea87ad16', '0-29', 0, 29, NULL, 'Completed', 1, 1, NULL, 1, 1, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:01.349008+00', '2026-11-16 21:45:01.349008+00', '2026-11-16 21:45:01.349008+00', '2026-11-16 21:45:01.349008+00', NULL, false, NULL, NULL, '784'),
	('01a1e652-14d6-753b-a4bd-308010684ca5', '00000000-0000-0000-0000-000000000001', '72d6cbd9-6f59-41ac-8a66-bc8a0cf81740', 'd31af67f-0245-47ff-9905-dc324487caa8', 'dispatcher', false, '96ea8d8b-3653-4fea-aace-fa40820f6a14:c80f3ca1-b007-4b50-b699-a27dea87ad16:70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8:p:0-29', '96ea8d8b-3653-4fea-aace-fa40820f6a14', 'c80f3ca1-b007-4b50-b699-a27dea87ad16', '0-29', 0, 29, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'b6d87f8a-1103-4790-8ebe-76e500419cc4', '2026-11-16 21:47:01.40358+00', '2026-11-16 22:45:01.40358+00', 'dispatcher:vm:2761', false, '\xb784a91268bf01863c34b510f79c8a3a894e234e81b7bc80b4ea437d0e45dc37', NULL, NULL, NULL, '2026-11-16 21:45:01.386+00', '2026-11-16 21:45:01.386+00', '2026-11-16 21:45:01.40358+00', '2026-11-16 21:45:01.40358+00', NULL, false, '788:788:', NULL, '788'),
	('01a1e652-151a-7c3d-96d5-892c4d1d2c3f', '00000000-0000-0000-0000-000000000001', '3e692b77-cebb-4265-9edd-6e8a0d199408', '238bd059-6127-4989-9c7a-1a717d9e37c7', 'ecs_python', false, '71b66862-0c8c-4f6a-87aa-1a66db6c2d25:ebbc6bc3-967c-4f76-9655-721890556061:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:0-9', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, '5391c23f-0445-4556-90c3-e5d40338b222', '2026-11-16 21:47:01.552469+00', '2026-11-16 22:45:01.552469+00', 'w1', false, '\x6bc69512ccc8c793d807e28af553e0999c414d07ed1acd954fd55466398ee307', NULL, NULL, NULL, '2026-11-16 21:45:01.45261+00', '2026-11-16 21:45:01.45261+00', '2026-11-16 21:45:01.552469+00', '2026-11-16 21:45:01.593218+00', NULL, false, '794:794:', NULL, '795'),
	('01a1e652-151b-72ef-90b1-cd8a88e6ab91', '00000000-0000-0000-0000-000000000001', '3e692b77-cebb-4265-9edd-6e8a0d199408', '238bd059-6127-4989-9c7a-1a717d9e37c7', 'ecs_python', false, '71b66862-0c8c-4f6a-87aa-1a66db6c2d25:ebbc6bc3-967c-4f76-9655-721890556061:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:10-19', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061', '10-19', 10, 19, NULL, 'Completed', 1, 3, NULL, 3600, 120, '58b03a4d-3463-4120-8807-7888914d9e24', '2026-11-16 21:47:01.66111+00', '2026-11-16 22:45:01.66111+00', 'w1', false, '\x8ee6c4aecf9d7fb6b027f4573ec9646b18a5f4ab57608eb20d31cc9e53c3ec70', NULL, NULL, NULL, '2026-11-16 21:45:01.45261+00', '2026-11-16 21:45:01.45261+00', '2026-11-16 21:45:01.66111+00', '2026-11-16 21:45:01.674901+00', NULL, false, '796:796:', NULL, '797'),
	('01a1e652-151b-7446-9f7e-95a0c33df826', '00000000-0000-0000-0000-000000000001', '3e692b77-cebb-4265-9edd-6e8a0d199408', '238bd059-6127-4989-9c7a-1a717d9e37c7', 'ecs_python', false, '71b66862-0c8c-4f6a-87aa-1a66db6c2d25:ebbc6bc3-967c-4f76-9655-721890556061:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:20-29', '71b66862-0c8c-4f6a-87aa-1a66db6c2d25', 'ebbc6bc3-967c-4f76-9655-721890556061', '20-29', 20, 29, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'ba7bf4ca-735c-48c1-bf63-3845285b6077', '2026-11-16 21:47:01.720339+00', '2026-11-16 22:45:01.720339+00', 'w1', false, '\xdd3bae94245ec893a9099d578161028694f9f7851866640b69252e7c7223e8ce', NULL, NULL, NULL, '2026-11-16 21:45:01.45261+00', '2026-11-16 21:45:01.45261+00', '2026-11-16 21:45:01.720339+00', '2026-11-16 21:45:01.725732+00', NULL, false, '798:798:', NULL, '799'),
	('01a1e652-165a-71c8-b735-9b4187b39191', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'ffb830fb-8e2a-4601-96ec-f1cf06118fd6', 'ecs_python', false, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e:p:0-9', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, '1df77a40-8fc4-49bf-8a94-d2b5d395c948', '2026-11-16 21:47:01.88222+00', '2026-11-16 22:45:01.88222+00', 'w1', false, '\x11b4130b255c2b4bd01b0a4533a9e5bec8ff9477a92de11e2143cae9f982c682', NULL, NULL, NULL, '2026-11-16 21:45:01.785657+00', '2026-11-16 21:45:01.785657+00', '2026-11-16 21:45:01.88222+00', '2026-11-16 21:45:01.896983+00', NULL, false, '804:804:', NULL, '805'),
	('01a1e652-165a-7544-929a-79e2fa4bbde6', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'ffb830fb-8e2a-4601-96ec-f1cf06118fd6', 'ecs_python', false, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e:p:10-19', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '10-19', 10, 19, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'f4b70e0a-e020-4985-9d82-ab0b26561515', '2026-11-16 21:47:01.920484+00', '2026-11-16 22:45:01.920484+00', 'w1', false, '\xb29b6001b54340e797b91cbe187c24a3563c7e2e01a9186d624a552064775198', NULL, NULL, NULL, '2026-11-16 21:45:01.785657+00', '2026-11-16 21:45:01.785657+00', '2026-11-16 21:45:01.920484+00', '2026-11-16 21:45:01.926618+00', NULL, false, '806:806:', NULL, '807'),
	('01a1e652-1a26-73fc-9e2b-4d43d2cca76b', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:0-9', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, '2cb23dc9-0a86-434b-9834-c82e05b07647', '2026-11-16 21:47:02.79412+00', '2026-11-16 22:45:02.79412+00', 'w1', false, '\x2feb2dce0ae101fabe8d3a441c4519d811a2c17eb4005f4c356dd8f476a1f4dc', NULL, NULL, NULL, '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.79412+00', '2026-11-16 21:45:02.808891+00', NULL, false, '842:842:', NULL, '843'),
	('01a1e652-1a26-77ca-ae8a-23c9c7692782', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:10-19', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '10-19', 10, 19, NULL, 'Running', 1, 3, NULL, 3600, 120, 'a451329b-4dea-40da-a4f4-1ff832143621', '2026-11-16 21:47:02.845887+00', '2026-11-16 22:45:02.845887+00', 'w1', false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.845887+00', NULL, NULL, false, '844:844:', NULL, '844'),
	('01a1e652-1a26-78cc-8cfc-2655fd315939', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:20-29', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '20-29', 20, 29, NULL, 'Failed', 1, 3, NULL, 3600, 120, 'a1bc07ef-7e78-4297-ba99-e5b70e11fcbc', '2026-11-16 21:47:02.858992+00', '2026-11-16 22:45:02.858992+00', 'w1', false, '\x57ac94f68b4fe5dcc635ba3c5a7ba92645986aa2c50a1afe08f160b126b851e3', NULL, NULL, 'node is down', '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.858992+00', NULL, '2026-11-16 21:45:35.770457+00', false, '845:845:', NULL, '846'),
	('01a1e652-1a26-796f-a409-984b5b95948c', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:30-39', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '30-39', 30, 39, NULL, 'Canceled', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, true, NULL, NULL, NULL, NULL, '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.757766+00', NULL, '2026-11-16 21:45:02.928353+00', NULL, false, NULL, NULL, '847'),
	('01a1e652-1a26-79f3-8909-9b46eebd8b24', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:40-49', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '40-49', 40, 49, NULL, 'Failed', 3, 3, NULL, 3600, 120, '1a264637-256c-46e6-9e59-8c1aca933c4e', '2026-11-16 21:47:03.044476+00', '2026-11-16 22:45:03.044476+00', 'w1', false, '\x2e97db3a42ce2b6e88bef9d42c14338534009397c1748001e5ac4ef3f499a393', NULL, NULL, 'division by zero', '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:03.028951+00', '2026-11-16 21:45:03.044476+00', '2026-11-16 21:45:03.051741+00', NULL, false, '856:856:', NULL, '857'),
	('01a1e652-1be1-703e-8729-062ffd7c4e4b', '00000000-0000-0000-0000-000000000001', '0b7a082e-8281-4dbd-ad4b-93b66f2d01df', 'c71325cb-c539-476f-94bb-682f38489442', 'dispatcher', false, 'trigger:662ff08d-7ea0-46a7-9c6b-96cac0822122:0-19', '57733525-e111-4257-a1ce-a6ca9359c6c8', '662ff08d-7ea0-46a7-9c6b-96cac0822122', '0-19', 0, 19, NULL, 'Completed', 1, 1, NULL, 1, 1, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.199695+00', '2026-11-16 21:45:03.199695+00', '2026-11-16 21:45:03.199695+00', '2026-11-16 21:45:03.199695+00', NULL, false, NULL, NULL, '859'),
	('01a1e652-165a-761e-b853-3ec2ca7c5fa1', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'ffb830fb-8e2a-4601-96ec-f1cf06118fd6', 'ecs_python', false, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e:p:20-29', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '20-29', 20, 29, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'ed4ef4d1-31b0-4c89-ad8f-99601db6e2a1', '2026-11-16 21:47:01.947317+00', '2026-11-16 22:45:01.947317+00', 'w1', false, '\x09fc336acf933d5cc43055c4496b3fcddb02c4fbc49f8bb53516afdaade7f195', NULL, NULL, NULL, '2026-11-16 21:45:01.785657+00', '2026-11-16 21:45:01.785657+00', '2026-11-16 21:45:01.947317+00', '2026-11-16 21:45:01.954754+00', NULL, false, '808:808:', NULL, '809'),
	('01a1e652-17aa-70bc-a975-9fe9eb91af74', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', '4d435c76-ce23-42a4-8182-74ceb06dd918', 'ecs_python', true, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:2ca9c3b14eb9428ed21d52e9c1cf0b33ffacc06ed736ffdedf746e9f3a5887a4:p:0-9', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'af5c0317-910d-45d3-aa85-2f1b4e100e8a', '2026-11-16 21:47:02.192478+00', '2026-11-16 22:45:02.192478+00', 'w1', false, '\x4cf473c76a5747d10946acee46084aa90881758c51f1d55de5be835902fe19c4', NULL, NULL, NULL, '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.192478+00', '2026-11-16 21:45:02.21041+00', NULL, false, '816:816:', NULL, '817'),
	('01a1e652-17aa-73fb-abd8-a6eacd746431', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', '4d435c76-ce23-42a4-8182-74ceb06dd918', 'ecs_python', true, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:2ca9c3b14eb9428ed21d52e9c1cf0b33ffacc06ed736ffdedf746e9f3a5887a4:p:10-19', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '10-19', 10, 19, NULL, 'Completed', 1, 3, NULL, 3600, 120, '419b4477-7e96-4d95-8ad9-1f9ce34e335f', '2026-11-16 21:47:02.232479+00', '2026-11-16 22:45:02.232479+00', 'w1', false, '\x5f9bbb9e97e96fc03a00a2fb8c6a698bd73eb7c4cb61f23e358a7fb1e1aca7ed', NULL, NULL, NULL, '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.232479+00', '2026-11-16 21:45:02.244519+00', NULL, false, '818:818:', NULL, '819'),
	('01a1e652-17aa-74a5-8ca6-e70526ba99ee', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', '4d435c76-ce23-42a4-8182-74ceb06dd918', 'ecs_python', true, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:2ca9c3b14eb9428ed21d52e9c1cf0b33ffacc06ed736ffdedf746e9f3a5887a4:p:20-29', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '20-29', 20, 29, NULL, 'Completed', 1, 3, NULL, 3600, 120, '24cd7e56-1f17-47b2-a065-70e1986a61af', '2026-11-16 21:47:02.259294+00', '2026-11-16 22:45:02.259294+00', 'w1', false, '\x52bdadd4c3e301d7da4b73a8730eb3617fd9b0ab97739012bc36b3ee24371a1f', NULL, NULL, NULL, '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.053723+00', '2026-11-16 21:45:02.259294+00', '2026-11-16 21:45:02.266094+00', NULL, false, '820:820:', NULL, '821'),
	('01a1e652-192d-7d08-8937-5113e92f2a7e', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'd9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', 'ecs_python', true, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:57152662a5d106c68a2d6462a7e2242d8d9a791f925cf6a771f7568c76156c63:p:10-19', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '10-19', 10, 19, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:02.457704+00', '2026-11-16 21:45:02.457704+00', NULL, NULL, NULL, false, NULL, NULL, '825'),
	('01a1e652-192d-7d94-b685-ac1eaefcb7d1', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'd9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', 'ecs_python', true, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:57152662a5d106c68a2d6462a7e2242d8d9a791f925cf6a771f7568c76156c63:p:20-29', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '20-29', 20, 29, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:02.457704+00', '2026-11-16 21:45:02.457704+00', NULL, NULL, NULL, false, NULL, NULL, '825'),
	('01a1e652-192d-7aa5-a6f1-c956edb646aa', '00000000-0000-0000-0000-000000000001', '5a14b97d-81bf-4d6b-b96c-5a34d0c2690d', 'd9404d0e-40bf-4b1f-95d2-91e17f9bc8e9', 'ecs_python', true, 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d:279c94bd-8583-4e3d-a0ab-c8c686d4fce7:57152662a5d106c68a2d6462a7e2242d8d9a791f925cf6a771f7568c76156c63:p:0-9', 'd5c84b71-2a20-4dda-82f6-1f11826f4e9d', '279c94bd-8583-4e3d-a0ab-c8c686d4fce7', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, '0067ce20-0a09-4936-b1a9-c006480cf60d', '2026-11-16 21:47:02.553064+00', '2026-11-16 22:45:02.553064+00', 'w1', false, '\x2c55fab2e078b5f213bc2f6df5304f256b4a7cae81b182fe97f402e691af0cf3', NULL, NULL, NULL, '2026-11-16 21:45:02.457704+00', '2026-11-16 21:45:02.457704+00', '2026-11-16 21:45:02.553064+00', '2026-11-16 21:45:02.568214+00', NULL, false, '829:829:', NULL, '830'),
	('01a1e652-1a06-7557-b17d-9b9540110648', '00000000-0000-0000-0000-000000000001', '13239434-db47-4d47-8d1a-7f51d5f74320', 'ef517cec-abf2-4b86-a740-b8d31a555be3', 'dispatcher', false, 'trigger:1dd3712b-542b-4b9a-9d01-72b95479f6ee:0-69', '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', '1dd3712b-542b-4b9a-9d01-72b95479f6ee', '0-69', 0, 69, NULL, 'Completed', 1, 1, NULL, 1, 1, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:02.723963+00', '2026-11-16 21:45:02.723963+00', '2026-11-16 21:45:02.723963+00', '2026-11-16 21:45:02.723963+00', NULL, false, NULL, NULL, '832'),
	('01a1e652-1a18-74c4-a643-93b1a19b41f6', '00000000-0000-0000-0000-000000000001', '5ddfe920-4863-48b9-9345-ed118646eccf', 'd0c05f73-b812-4583-ab25-b7e976196a71', 'dispatcher', false, '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1:1dd3712b-542b-4b9a-9d01-72b95479f6ee:70bf2db17ac14a9646197238d012a8568bf7c6bd6559540ae2d518359707bdd8:p:0-69', '4480fe74-5a5b-4d94-95e8-c7c0889bb5b1', '1dd3712b-542b-4b9a-9d01-72b95479f6ee', '0-69', 0, 69, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'c014f378-c61f-400d-a73a-c678272de3e7', '2026-11-16 21:47:02.747461+00', '2026-11-16 22:45:02.747461+00', 'dispatcher:vm:2761', false, '\xf5413ddd717c3e5ef22b1257e7ffabbed91f9d6a9cde85111db14690a2619867', NULL, NULL, NULL, '2026-11-16 21:45:02.743876+00', '2026-11-16 21:45:02.743876+00', '2026-11-16 21:45:02.747461+00', '2026-11-16 21:45:02.747461+00', NULL, false, '836:836:', NULL, '836'),
	('01a1e652-1bee-7842-9f62-64a49c294592', '00000000-0000-0000-0000-000000000001', '02b1badc-afa0-4ea7-80bc-14fe5e592626', 'dd2c0518-80a5-44cc-921b-f7a6298a7205', 'ecs_python', false, '46a40e39-d449-43a0-b53a-f7645c997b50:4d4172e0-a987-4b55-8f92-3661a4282979:53a39e1a4ad0f00d373bca4ec840effe1992452e7fb5da10c960b8775a500e6e:p:0-9', '46a40e39-d449-43a0-b53a-f7645c997b50', '4d4172e0-a987-4b55-8f92-3661a4282979', '0-9', 0, 9, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.213697+00', '2026-11-16 21:45:03.213697+00', NULL, NULL, NULL, false, NULL, NULL, '861'),
	('01a1e652-1bee-7315-8d1c-03e36a6d23c6', '00000000-0000-0000-0000-000000000001', '57b6b4ae-184f-4608-917b-381f630169e5', '1971261c-b64f-4b91-bd37-5f3389f64ba0', 'dispatcher', false, '57733525-e111-4257-a1ce-a6ca9359c6c8:662ff08d-7ea0-46a7-9c6b-96cac0822122:168b3c96bab72331d4e33f0ac158272ff58c9742797e84ad93f4e0d14904ce44:p:0-19', '57733525-e111-4257-a1ce-a6ca9359c6c8', '662ff08d-7ea0-46a7-9c6b-96cac0822122', '0-19', 0, 19, NULL, 'Completed', 1, 3, NULL, 3600, 120, '5948bac3-2743-49c6-b25c-43cbf0296593', '2026-11-16 21:47:03.234081+00', '2026-11-16 22:45:03.234081+00', 'dispatcher:vm:2761', false, '\xf63268ea964dc738ebe450bca77bc2515d999c5706ae66bf4c8d66a462ad4aed', NULL, NULL, NULL, '2026-11-16 21:45:03.213697+00', '2026-11-16 21:45:03.213697+00', '2026-11-16 21:45:03.234081+00', '2026-11-16 21:45:03.234081+00', NULL, false, '867:867:', NULL, '867'),
	('01a1e652-1d61-7acf-b937-2726e69c5932', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858', 'ecs_python', true, '32975fb4-49be-47c3-b070-6b1215f3269f:40611a67-e23c-4b85-8ef7-d4d972d96956:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:10-19', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', '10-19', 10, 19, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.577476+00', NULL, NULL, NULL, false, NULL, NULL, '882'),
	('01a1e652-1d61-7bb2-8c39-fdb79f9c42f5', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858', 'ecs_python', true, '32975fb4-49be-47c3-b070-6b1215f3269f:40611a67-e23c-4b85-8ef7-d4d972d96956:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:20-29', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', '20-29', 20, 29, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.577476+00', NULL, NULL, NULL, false, NULL, NULL, '882'),
	('01a1e652-1d61-7c63-8248-ea4d36d134ab', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858', 'ecs_python', true, '32975fb4-49be-47c3-b070-6b1215f3269f:40611a67-e23c-4b85-8ef7-d4d972d96956:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:30-39', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', '30-39', 30, 39, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.577476+00', NULL, NULL, NULL, false, NULL, NULL, '882'),
	('01a1e652-1d61-76c0-83af-7dd9c072be8a', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858', 'ecs_python', true, '32975fb4-49be-47c3-b070-6b1215f3269f:40611a67-e23c-4b85-8ef7-d4d972d96956:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:0-9', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, '235270d8-73fc-445f-99da-0b51c9da57e0', '2026-11-16 21:47:03.607431+00', '2026-11-16 22:45:03.607431+00', 'w1', false, '\x35ef3a0678874e2b31a5aab819e597464077cfefaccfa64e6417f53d70f568ff', NULL, NULL, NULL, '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.607431+00', '2026-11-16 21:45:03.615955+00', NULL, false, '886:886:', NULL, '887'),
	('01a1e652-1a26-7bbf-95e6-b8136c6685ec', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:60-69', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '60-69', 60, 69, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.757766+00', NULL, NULL, NULL, false, NULL, NULL, '839'),
	('01a1e652-1c08-7a49-b39b-b0c4802f5ffc', '00000000-0000-0000-0000-000000000001', '4e8fa48d-ad42-4b70-8441-27ce4e0b44a8', '637c4b46-77eb-474a-8512-d8e9e7b3704f', 'ecs_python', false, '9bd4c137-96eb-40fd-af23-0ef1f0ca484f:7a5314a7-ae50-4fe4-babe-82797051bc5e:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:0-9', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', '7a5314a7-ae50-4fe4-babe-82797051bc5e', '0-9', 0, 9, NULL, 'Completed', 1, 3, NULL, 3600, 120, '4818a91f-7247-48d8-acc2-673807427a57', '2026-11-16 21:47:03.284479+00', '2026-11-16 22:45:03.284479+00', 'w1', false, '\x4c3b979f799c41f1631bc762cf48762a279fb484974bea046adce6dfd134b7f4', NULL, NULL, NULL, '2026-11-16 21:45:03.240107+00', '2026-11-16 21:45:03.240107+00', '2026-11-16 21:45:03.284479+00', '2026-11-16 21:45:03.297078+00', NULL, false, '873:873:', NULL, '874'),
	('01a1e652-1c08-7e1e-a57c-d6d89a92bd46', '00000000-0000-0000-0000-000000000001', '4e8fa48d-ad42-4b70-8441-27ce4e0b44a8', '637c4b46-77eb-474a-8512-d8e9e7b3704f', 'ecs_python', false, '9bd4c137-96eb-40fd-af23-0ef1f0ca484f:7a5314a7-ae50-4fe4-babe-82797051bc5e:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:10-19', '9bd4c137-96eb-40fd-af23-0ef1f0ca484f', '7a5314a7-ae50-4fe4-babe-82797051bc5e', '10-19', 10, 19, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'a3b98151-07ee-4517-a358-0d7804fbf71e', '2026-11-16 21:47:03.320462+00', '2026-11-16 22:45:03.320462+00', 'w1', false, '\xc69db3109910b3a1ba5b069dbb031e19af2fc3c45dc13740fd6e4e39a00aa7d7', NULL, NULL, NULL, '2026-11-16 21:45:03.240107+00', '2026-11-16 21:45:03.240107+00', '2026-11-16 21:45:03.320462+00', '2026-11-16 21:45:03.330647+00', NULL, false, '875:875:', NULL, '876'),
	('01a1e652-1a26-7a7a-bc93-2bd988a7fc49', '00000000-0000-0000-0000-000000000001', 'e832b122-4fa9-4c64-98d8-2ab084a1ab94', 'ac18a7c6-c6dc-42fd-8ceb-b75a0af96c5a', 'ecs_python', false, 'bb140eed-bf39-40da-8c7a-f66e519cf6f5:525b1141-fcdb-43a1-91d8-a81bbc9f4ffa:8200e6f7252785d5b6742555f6dc8338203af6c98c6bb7d95ae38c977af8f991:p:50-59', 'bb140eed-bf39-40da-8c7a-f66e519cf6f5', '525b1141-fcdb-43a1-91d8-a81bbc9f4ffa', '50-59', 50, 59, NULL, 'Completed', 1, 3, NULL, 3600, 120, 'ebecd436-d632-4158-a3fc-e750547a9af0', '2026-11-16 21:47:05.712475+00', '2026-11-16 22:45:05.712475+00', 'w1', false, '\x7d42090c2a2df04e0085cb39d4431962f410b628474c6b4cb42e8280c22af311', NULL, NULL, NULL, '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:02.757766+00', '2026-11-16 21:45:05.712475+00', '2026-11-16 21:45:05.720769+00', NULL, false, '916:916:', NULL, '917'),
	('01a1e652-1d61-7d17-9ee1-187ecd25fc69', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858', 'ecs_python', true, '32975fb4-49be-47c3-b070-6b1215f3269f:40611a67-e23c-4b85-8ef7-d4d972d96956:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:40-49', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', '40-49', 40, 49, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.577476+00', NULL, NULL, NULL, false, NULL, NULL, '882'),
	('01a1e652-1d61-7e50-9c3f-6d0f86846687', '00000000-0000-0000-0000-000000000001', '0e6938fc-b797-484e-a331-5f2eb697f951', 'ba1a56d4-8c38-4737-b80a-caeb13702858', 'ecs_python', true, '32975fb4-49be-47c3-b070-6b1215f3269f:40611a67-e23c-4b85-8ef7-d4d972d96956:bc1258738805d9189d8825691d44caf271022427a79848421831341721a23160:p:50-59', '32975fb4-49be-47c3-b070-6b1215f3269f', '40611a67-e23c-4b85-8ef7-d4d972d96956', '50-59', 50, 59, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.577476+00', '2026-11-16 21:45:03.577476+00', NULL, NULL, NULL, false, NULL, NULL, '882'),
	('01a1e652-1d93-7340-997c-a3a6a305b920', '00000000-0000-0000-0000-000000000001', 'c4a6cdd6-2f2f-445c-8144-65d0ac3ff90e', '703755c6-7e61-4021-9ef9-cc7cdf435b85', 'ecs_python', true, '971f62a9-6783-4913-b696-e4464f692d0c:239f0d05-108f-4a3d-a2ba-3ea670d56c19:b666dfc54fd8a8dfe60a70bc0fc852ee0c046df61d2eb9889ea88186c826d2f9:p:0-9', '971f62a9-6783-4913-b696-e4464f692d0c', '239f0d05-108f-4a3d-a2ba-3ea670d56c19', '0-9', 0, 9, NULL, 'Queued', 1, 3, NULL, 3600, 120, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.634815+00', '2026-11-16 21:45:03.634815+00', NULL, NULL, NULL, false, NULL, NULL, '889'),
	('01a1e652-1e24-71ad-8fdd-96f7749a6e1c', '00000000-0000-0000-0000-000000000001', '03fb9e3e-6c3f-44f3-a19f-1687f119c0d8', '4632ecd7-4fb1-461d-bd85-04ed149be843', 'ecs_python', false, 'aeffa707-817e-4578-a5ba-94108ad4a995:0cd13e94-5f05-471d-bedd-cc0cc4b9e646:3c9a7a1acb322f0e3513bbeb4cf452654b3431a84637ba5fe612b638c2a37219:p:0-0', 'aeffa707-817e-4578-a5ba-94108ad4a995', '0cd13e94-5f05-471d-bedd-cc0cc4b9e646', '0-0', 0, 0, NULL, 'Running', 1, 3, NULL, 3600, 120, '67f2457b-63ec-4778-bd94-fb46ac37552e', '2026-11-16 21:47:04.536461+00', '2026-11-16 22:45:04.536461+00', 'w1', false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.779726+00', '2026-11-16 21:45:03.779726+00', '2026-11-16 21:45:04.536461+00', NULL, NULL, false, '900:900:', NULL, '900'),
	('01a1e652-1e1d-78bd-8078-77af1c8a547f', '00000000-0000-0000-0000-000000000001', 'dfe3b398-7d83-4bbf-9495-d33348341196', 'd1accd26-b142-406e-83d6-21871df4874e', 'dispatcher', false, 'trigger:0cd13e94-5f05-471d-bedd-cc0cc4b9e646:0-0', 'aeffa707-817e-4578-a5ba-94108ad4a995', '0cd13e94-5f05-471d-bedd-cc0cc4b9e646', '0-0', 0, 0, NULL, 'Completed', 1, 1, NULL, 1, 1, NULL, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, '2026-11-16 21:45:03.770489+00', '2026-11-16 21:45:03.770489+00', '2026-11-16 21:45:03.770489+00', '2026-11-16 21:45:03.770489+00', NULL, false, NULL, NULL, '894');
INSERT INTO public.users VALUES
	('local', '2026-11-16 21:45:00.060443+00');
SELECT pg_catalog.setval('public.buffer_publishes_publish_no_seq', 2, true);
SELECT pg_catalog.setval('public.change_numbers', 16, true);
SELECT pg_catalog.setval('public.dataset_versions_generation_no_seq', 26, true);
SELECT pg_catalog.setval('public.outbox_outbox_id_seq', 71, true);
SELECT pg_catalog.setval('public.task_tally_corrections_correction_id_seq', 2, true);
ALTER TABLE ONLY public.aggregated_ranges
    ADD CONSTRAINT aggregated_ranges_pkey PRIMARY KEY (job_id, generation_hash, dataset_version, range_start);
ALTER TABLE ONLY public.backfill_chunks
    ADD CONSTRAINT backfill_chunks_pkey PRIMARY KEY (backfill_id, range_start);
ALTER TABLE ONLY public.backfills
    ADD CONSTRAINT backfills_pkey PRIMARY KEY (backfill_id);
ALTER TABLE ONLY public.buffer_publishes
    ADD CONSTRAINT buffer_publishes_once UNIQUE (task_id, attempt, dataset_uuid, batch_uri);
ALTER TABLE ONLY public.buffer_publishes
    ADD CONSTRAINT buffer_publishes_pkey PRIMARY KEY (publish_id);
ALTER TABLE ONLY public.changes
    ADD CONSTRAINT changes_pkey PRIMARY KEY (change_id);
ALTER TABLE ONLY public.consumer_cursors
    ADD CONSTRAINT consumer_cursors_pkey PRIMARY KEY (job_id, generation_hash, dataset_version);
ALTER TABLE ONLY public.dag_pauses
    ADD CONSTRAINT dag_pauses_pkey PRIMARY KEY (dag_id);
ALTER TABLE ONLY public.dag_version_jobs
    ADD CONSTRAINT dag_version_jobs_pkey PRIMARY KEY (dag_version, job_id);
ALTER TABLE ONLY public.dag_versions
    ADD CONSTRAINT dag_versions_pkey PRIMARY KEY (dag_version);
ALTER TABLE ONLY public.dag_versions
    ADD CONSTRAINT dag_versions_text UNIQUE (dag_id, text_sha256);
ALTER TABLE ONLY public.dags
    ADD CONSTRAINT dags_name_per_org UNIQUE (org_id, name);
ALTER TABLE ONLY public.dags
    ADD CONSTRAINT dags_pkey PRIMARY KEY (dag_id);
ALTER TABLE ONLY public.dataset_versions
    ADD CONSTRAINT dataset_versions_generation UNIQUE (dataset_uuid, generation_hash);
ALTER TABLE ONLY public.dataset_versions
    ADD CONSTRAINT dataset_versions_pkey PRIMARY KEY (dataset_version);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_buffer_per_org UNIQUE (org_id, buffer_name);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_output_per_job UNIQUE (job_id, output_name);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_pkey PRIMARY KEY (dataset_uuid);
ALTER TABLE ONLY public.deferred_events
    ADD CONSTRAINT deferred_events_pkey PRIMARY KEY (event_id, job_id, bulk);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_once UNIQUE (producer_task_id, dataset_uuid, dataset_version, scope_key);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (event_id);
ALTER TABLE ONLY public.invalidation_consumers
    ADD CONSTRAINT invalidation_consumers_pkey PRIMARY KEY (invalidation_id, task_id);
ALTER TABLE ONLY public.invalidations
    ADD CONSTRAINT invalidations_once UNIQUE (task_id, dataset_version, once_key);
ALTER TABLE ONLY public.invalidations
    ADD CONSTRAINT invalidations_pkey PRIMARY KEY (invalidation_id);
ALTER TABLE ONLY public.job_inputs
    ADD CONSTRAINT job_inputs_pkey PRIMARY KEY (revision_id, input_index);
ALTER TABLE ONLY public.job_outputs
    ADD CONSTRAINT job_outputs_pkey PRIMARY KEY (revision_id, output_index);
ALTER TABLE ONLY public.job_revisions
    ADD CONSTRAINT job_revisions_definition UNIQUE (job_id, definition_hash);
ALTER TABLE ONLY public.job_revisions
    ADD CONSTRAINT job_revisions_pkey PRIMARY KEY (revision_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_name_per_dag UNIQUE (dag_id, name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY public.memberships
    ADD CONSTRAINT memberships_pkey PRIMARY KEY (org_id, user_name);
ALTER TABLE ONLY public.operator_caps
    ADD CONSTRAINT operator_caps_pkey PRIMARY KEY (operator);
ALTER TABLE ONLY public.orgs
    ADD CONSTRAINT orgs_name_key UNIQUE (name);
ALTER TABLE ONLY public.orgs
    ADD CONSTRAINT orgs_pkey PRIMARY KEY (org_id);
ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (outbox_id);
ALTER TABLE ONLY public.partition_inputs
    ADD CONSTRAINT partition_inputs_pkey PRIMARY KEY (dataset_version, partition_key, input_version, input_key);
ALTER TABLE ONLY public.partitions
    ADD CONSTRAINT partitions_do_not_overlap EXCLUDE USING gist (box(point((generation_no)::double precision, (range_start)::double precision), point((generation_no)::double precision, (range_end)::double precision)) WITH &&);
ALTER TABLE ONLY public.partitions
    ADD CONSTRAINT partitions_pkey PRIMARY KEY (dataset_version, partition_key);
ALTER TABLE ONLY public.pauses
    ADD CONSTRAINT pauses_once UNIQUE NULLS NOT DISTINCT (job_id, by_job_id);
ALTER TABLE ONLY public.publications
    ADD CONSTRAINT publications_name_per_org PRIMARY KEY (org_id, name);
ALTER TABLE ONLY public.reconciled_edges
    ADD CONSTRAINT reconciled_edges_pkey PRIMARY KEY (job_id, generation_hash, dataset_version);
ALTER TABLE ONLY public.reconciled_events
    ADD CONSTRAINT reconciled_events_pkey PRIMARY KEY (only_one);
ALTER TABLE ONLY public.rollout_targets
    ADD CONSTRAINT rollout_targets_pkey PRIMARY KEY (rollout_id, dataset_uuid, from_version);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_pkey PRIMARY KEY (rollout_id);
ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.task_attempts
    ADD CONSTRAINT task_attempts_pkey PRIMARY KEY (task_id, attempt);
ALTER TABLE ONLY public.task_tallies
    ADD CONSTRAINT task_tallies_pkey PRIMARY KEY (job_id, status);
ALTER TABLE ONLY public.task_tally_corrections
    ADD CONSTRAINT task_tally_corrections_pkey PRIMARY KEY (correction_id);
ALTER TABLE ONLY public.task_tally_marks
    ADD CONSTRAINT task_tally_marks_pkey PRIMARY KEY (org_id);
ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_dedupe UNIQUE (job_id, dedupe_key);
ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY public.trips
    ADD CONSTRAINT trips_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT users_pkey PRIMARY KEY (name);
CREATE INDEX backfill_chunks_state ON public.backfill_chunks USING btree (backfill_id, state, range_start);
CREATE INDEX backfills_job ON public.backfills USING btree (job_id, created_at DESC);
CREATE INDEX backfills_listing ON public.backfills USING btree (org_id, created_at DESC, backfill_id DESC);
CREATE UNIQUE INDEX backfills_running ON public.backfills USING btree (job_id, generation_hash, range_start, range_end, chunk, force) WHERE (state = 'running'::text);
CREATE INDEX buffer_publishes_dataset ON public.buffer_publishes USING btree (dataset_uuid, publish_no DESC);
CREATE INDEX buffer_publishes_sunk ON public.buffer_publishes USING btree (sunk_at) WHERE (sunk_at IS NOT NULL);
CREATE INDEX buffer_publishes_waiting ON public.buffer_publishes USING btree (ask_again_at) WHERE ((sunk_at IS NULL) AND (failed_at IS NULL));
CREATE INDEX changes_age ON public.changes USING btree (changed_at);
CREATE INDEX changes_order ON public.changes USING btree (org_id, changed_xid, change_id);
CREATE INDEX consumer_cursors_dataset ON public.consumer_cursors USING btree (dataset_uuid);
CREATE INDEX deferred_events_of_job ON public.deferred_events USING btree (job_id, bulk, deferred_at);
CREATE INDEX events_accepted ON public.events USING btree (accepted_at);
CREATE INDEX events_producer_cursor ON public.events USING btree (producer_task_id, cursor_value) WHERE (cursor_value IS NOT NULL);
CREATE INDEX events_version ON public.events USING btree (dataset_version, scope_key);
CREATE INDEX invalidations_dataset ON public.invalidations USING btree (dataset_uuid, made_at DESC);
CREATE INDEX invalidations_made ON public.invalidations USING btree (dataset_version, made_xid);
CREATE INDEX invalidations_routed ON public.invalidations USING btree (made_at) WHERE (routed_at IS NOT NULL);
CREATE INDEX invalidations_unrouted ON public.invalidations USING btree (made_at) WHERE (routed_at IS NULL);
CREATE INDEX job_inputs_dataset ON public.job_inputs USING btree (dataset_uuid);
CREATE INDEX job_outputs_dataset ON public.job_outputs USING btree (dataset_uuid);
CREATE INDEX job_revisions_always_on ON public.job_revisions USING btree (job_id, generation_hash) WHERE ((source ->> 'kind'::text) = 'always_on'::text);
CREATE INDEX job_revisions_limited ON public.job_revisions USING btree (revision_id) WHERE ((max_queue_depth IS NOT NULL) OR (max_queue_age IS NOT NULL));
CREATE INDEX jobs_capped_operator ON public.jobs USING btree (capped_operator) WHERE (capped_operator IS NOT NULL);
CREATE INDEX jobs_paused ON public.jobs USING btree (job_id) WHERE ((paused_at IS NOT NULL) OR (bulk_paused_at IS NOT NULL));
CREATE INDEX outbox_due ON public.outbox USING btree (next_try_at, outbox_id) WHERE (failed_at IS NULL);
CREATE INDEX partition_inputs_input ON public.partition_inputs USING btree (input_version, input_key);
CREATE INDEX partitions_commit ON public.partitions USING btree (dataset_version, commit_xid, partition_key);
CREATE INDEX partitions_task ON public.partitions USING btree (task_id);
CREATE UNIQUE INDEX publications_dataset ON public.publications USING btree (dataset_uuid);
CREATE INDEX rollouts_of_dag ON public.rollouts USING btree (dag_id, started_at DESC);
CREATE UNIQUE INDEX rollouts_one_building ON public.rollouts USING btree (dag_id) WHERE (state = 'building'::text);
CREATE INDEX task_tally_corrections_org ON public.task_tally_corrections USING btree (org_id, changed_xid);
CREATE INDEX tasks_capped ON public.tasks USING btree (job_id, runtime, bulk, queued_at) WHERE (((''::text || status) = 'Queued'::text) AND (max_concurrency IS NOT NULL));
CREATE INDEX tasks_changes ON public.tasks USING btree (org_id, changed_xid, task_id);
CREATE INDEX tasks_finished ON public.tasks USING btree (dataset_version, finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX tasks_listing ON public.tasks USING btree (org_id, created_at DESC, task_id DESC);
CREATE INDEX tasks_live_job ON public.tasks USING btree (job_id, status, bulk, queued_at) WHERE (status = ANY (ARRAY['Queued'::text, 'Running'::text]));
CREATE INDEX tasks_queued ON public.tasks USING btree (runtime, bulk, queued_at) WHERE (status = 'Queued'::text);
CREATE INDEX tasks_ready ON public.tasks USING btree (runtime, bulk, queued_at) WHERE ((status = 'Queued'::text) AND (max_concurrency IS NULL));
CREATE INDEX tasks_retry ON public.tasks USING btree (retry_at) WHERE (retry_at IS NOT NULL);
CREATE INDEX tasks_running_deadline ON public.tasks USING btree (deadline_at) WHERE (status = 'Running'::text);
CREATE INDEX tasks_running_lease ON public.tasks USING btree (lease_expires_at) WHERE (status = 'Running'::text);
CREATE INDEX tasks_uncapped ON public.tasks USING btree (job_id, runtime, bulk, queued_at) WHERE (((''::text || status) = 'Queued'::text) AND (max_concurrency IS NULL));
CREATE INDEX tasks_unsuccessful ON public.tasks USING btree (job_id) WHERE (status = ANY (ARRAY['Failed'::text, 'Canceled'::text]));
CREATE INDEX tasks_waiting_answers ON public.tasks USING btree (job_id, partition_key) WHERE ((status = 'Queued'::text) AND (invalidation_id IS NOT NULL));
CREATE TRIGGER changes_forgotten AFTER DELETE ON public.changes REFERENCING OLD TABLE AS forgotten FOR EACH STATEMENT EXECUTE FUNCTION public.note_forgotten();
CREATE TRIGGER dags_deployed AFTER INSERT OR UPDATE OF dag_version ON public.dags FOR EACH ROW WHEN ((new.dag_version IS NOT NULL)) EXECUTE FUNCTION public.note_deploy();
CREATE TRIGGER jobs_operator BEFORE INSERT OR UPDATE OF revision_id ON public.jobs FOR EACH ROW EXECUTE FUNCTION public.note_operator();
CREATE TRIGGER pauses_changed AFTER INSERT OR DELETE OR UPDATE OF tier ON public.pauses FOR EACH ROW EXECUTE FUNCTION public.note_pause();
CREATE TRIGGER rollouts_changed AFTER INSERT OR UPDATE OF state ON public.rollouts FOR EACH ROW EXECUTE FUNCTION public.note_rollout();
CREATE TRIGGER tasks_changed BEFORE UPDATE OF status, cancel_requested ON public.tasks FOR EACH ROW WHEN (((old.status <> new.status) OR (old.cancel_requested <> new.cancel_requested))) EXECUTE FUNCTION public.note_task_change();
CREATE TRIGGER tasks_forgotten AFTER DELETE ON public.tasks REFERENCING OLD TABLE AS forgotten FOR EACH STATEMENT EXECUTE FUNCTION public.note_forgotten();
CREATE TRIGGER tasks_not_ended AFTER UPDATE OF status, cancel_requested ON public.tasks FOR EACH ROW WHEN (((old.status = ANY (ARRAY['Completed'::text, 'Failed'::text, 'Canceled'::text])) AND (old.changed_xid <> new.changed_xid))) EXECUTE FUNCTION public.note_task_correction();
CREATE TRIGGER tasks_uncounted AFTER DELETE ON public.tasks FOR EACH ROW WHEN ((old.status = ANY (ARRAY['Completed'::text, 'Failed'::text, 'Canceled'::text]))) EXECUTE FUNCTION public.note_task_correction();
ALTER TABLE ONLY public.aggregated_ranges
    ADD CONSTRAINT aggregated_ranges_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.aggregated_ranges
    ADD CONSTRAINT aggregated_ranges_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.backfill_chunks
    ADD CONSTRAINT backfill_chunks_backfill_id_fkey FOREIGN KEY (backfill_id) REFERENCES public.backfills(backfill_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.backfills
    ADD CONSTRAINT backfills_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.backfills
    ADD CONSTRAINT backfills_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.backfills
    ADD CONSTRAINT backfills_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.backfills
    ADD CONSTRAINT backfills_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.consumer_cursors
    ADD CONSTRAINT consumer_cursors_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.consumer_cursors
    ADD CONSTRAINT consumer_cursors_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.consumer_cursors
    ADD CONSTRAINT consumer_cursors_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.dag_pauses
    ADD CONSTRAINT dag_pauses_dag_id_fkey FOREIGN KEY (dag_id) REFERENCES public.dags(dag_id);
ALTER TABLE ONLY public.dag_version_jobs
    ADD CONSTRAINT dag_version_jobs_dag_version_fkey FOREIGN KEY (dag_version) REFERENCES public.dag_versions(dag_version);
ALTER TABLE ONLY public.dag_version_jobs
    ADD CONSTRAINT dag_version_jobs_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.dag_version_jobs
    ADD CONSTRAINT dag_version_jobs_revision_id_fkey FOREIGN KEY (revision_id) REFERENCES public.job_revisions(revision_id);
ALTER TABLE ONLY public.dag_versions
    ADD CONSTRAINT dag_versions_dag_id_fkey FOREIGN KEY (dag_id) REFERENCES public.dags(dag_id);
ALTER TABLE ONLY public.dags
    ADD CONSTRAINT dags_dag_version_fkey FOREIGN KEY (dag_version) REFERENCES public.dag_versions(dag_version);
ALTER TABLE ONLY public.dags
    ADD CONSTRAINT dags_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.dataset_versions
    ADD CONSTRAINT dataset_versions_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_building_version_fkey FOREIGN KEY (building_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.deferred_events
    ADD CONSTRAINT deferred_events_event_id_fkey FOREIGN KEY (event_id) REFERENCES public.events(event_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.deferred_events
    ADD CONSTRAINT deferred_events_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.invalidation_consumers
    ADD CONSTRAINT invalidation_consumers_invalidation_id_fkey FOREIGN KEY (invalidation_id) REFERENCES public.invalidations(invalidation_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.invalidation_consumers
    ADD CONSTRAINT invalidation_consumers_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.invalidations
    ADD CONSTRAINT invalidations_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.invalidations
    ADD CONSTRAINT invalidations_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.job_inputs
    ADD CONSTRAINT job_inputs_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.job_inputs
    ADD CONSTRAINT job_inputs_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.job_inputs
    ADD CONSTRAINT job_inputs_revision_id_fkey FOREIGN KEY (revision_id) REFERENCES public.job_revisions(revision_id);
ALTER TABLE ONLY public.job_outputs
    ADD CONSTRAINT job_outputs_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.job_outputs
    ADD CONSTRAINT job_outputs_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.job_outputs
    ADD CONSTRAINT job_outputs_revision_id_fkey FOREIGN KEY (revision_id) REFERENCES public.job_revisions(revision_id);
ALTER TABLE ONLY public.job_revisions
    ADD CONSTRAINT job_revisions_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_building_revision_id_fkey FOREIGN KEY (building_revision_id) REFERENCES public.job_revisions(revision_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_dag_id_fkey FOREIGN KEY (dag_id) REFERENCES public.dags(dag_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_revision_id_fkey FOREIGN KEY (revision_id) REFERENCES public.job_revisions(revision_id);
ALTER TABLE ONLY public.memberships
    ADD CONSTRAINT memberships_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.memberships
    ADD CONSTRAINT memberships_user_name_fkey FOREIGN KEY (user_name) REFERENCES public.users(name);
ALTER TABLE ONLY public.partition_inputs
    ADD CONSTRAINT partition_inputs_input_version_fkey FOREIGN KEY (input_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.partitions
    ADD CONSTRAINT partitions_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.pauses
    ADD CONSTRAINT pauses_by_job_id_fkey FOREIGN KEY (by_job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.pauses
    ADD CONSTRAINT pauses_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.publications
    ADD CONSTRAINT publications_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.publications
    ADD CONSTRAINT publications_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.reconciled_edges
    ADD CONSTRAINT reconciled_edges_dataset_version_fkey FOREIGN KEY (dataset_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.reconciled_edges
    ADD CONSTRAINT reconciled_edges_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
ALTER TABLE ONLY public.rollout_targets
    ADD CONSTRAINT rollout_targets_dataset_uuid_fkey FOREIGN KEY (dataset_uuid) REFERENCES public.datasets(dataset_uuid);
ALTER TABLE ONLY public.rollout_targets
    ADD CONSTRAINT rollout_targets_from_version_fkey FOREIGN KEY (from_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.rollout_targets
    ADD CONSTRAINT rollout_targets_rollout_id_fkey FOREIGN KEY (rollout_id) REFERENCES public.rollouts(rollout_id);
ALTER TABLE ONLY public.rollout_targets
    ADD CONSTRAINT rollout_targets_to_version_fkey FOREIGN KEY (to_version) REFERENCES public.dataset_versions(dataset_version);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_dag_id_fkey FOREIGN KEY (dag_id) REFERENCES public.dags(dag_id);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_dag_version_fkey FOREIGN KEY (dag_version) REFERENCES public.dag_versions(dag_version);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_previous_version_fkey FOREIGN KEY (previous_version) REFERENCES public.dag_versions(dag_version);
ALTER TABLE ONLY public.task_tally_marks
    ADD CONSTRAINT task_tally_marks_org_id_fkey FOREIGN KEY (org_id) REFERENCES public.orgs(org_id);
ALTER TABLE ONLY public.trips
    ADD CONSTRAINT trips_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(job_id);
GRANT SELECT ON TABLE public.datasets TO trace_reader;
GRANT SELECT ON TABLE public.dataset_versions TO trace_reader;
GRANT SELECT ON TABLE public.memberships TO trace_reader;
GRANT SELECT ON TABLE public.orgs TO trace_reader;
GRANT SELECT ON TABLE public.partitions TO trace_reader;
GRANT SELECT ON TABLE public.publications TO trace_reader;
