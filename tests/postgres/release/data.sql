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
CREATE SCHEMA queue;
ALTER SCHEMA queue OWNER TO trace_queue;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.append_fences (
    dataset_version uuid NOT NULL,
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.append_fences OWNER TO trace_data;
CREATE TABLE public.buffer_batches (
    publish_id uuid NOT NULL,
    dataset_version uuid NOT NULL,
    cursor_value bigint,
    row_count bigint NOT NULL,
    sunk_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.buffer_batches OWNER TO trace_data;
CREATE TABLE public.buffer_cursors (
    dataset_version uuid NOT NULL,
    cursor_value bigint NOT NULL
);
ALTER TABLE public.buffer_cursors OWNER TO trace_data;
CREATE TABLE public.data_migrations (
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.data_migrations OWNER TO trace_data;
CREATE TABLE public.dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2 (
    id text CONSTRAINT dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847_id_not_null NOT NULL,
    n bigint,
    org_id text CONSTRAINT dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414_org_id_not_null NOT NULL,
    _cursor bigint CONSTRAINT dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc41__cursor_not_null NOT NULL,
    _published bigint CONSTRAINT dataset_1ef674a2cc734cee9bbfca10c8181dca_dd__published_not_null NOT NULL
);
ALTER TABLE public.dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2 OWNER TO trace_data;
CREATE TABLE public.follower_past_tasks (
    stream uuid NOT NULL,
    task_id uuid NOT NULL
);
ALTER TABLE public.follower_past_tasks OWNER TO trace_data;
CREATE TABLE public.follower_rewrites (
    rewrite_id bigint NOT NULL,
    stream uuid NOT NULL,
    range_start bigint NOT NULL,
    range_end bigint NOT NULL,
    reason text NOT NULL,
    CONSTRAINT follower_rewrites_check CHECK ((range_start <= range_end))
);
ALTER TABLE public.follower_rewrites OWNER TO trace_data;
ALTER TABLE public.follower_rewrites ALTER COLUMN rewrite_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.follower_rewrites_rewrite_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.follower_trail (
    stream uuid NOT NULL,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT follower_trail_hash_check CHECK ((octet_length(hash) = 32))
);
ALTER TABLE public.follower_trail OWNER TO trace_data;
CREATE TABLE public.followers (
    stream uuid NOT NULL,
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    chain_id bigint NOT NULL,
    number bigint,
    hash bytea,
    finalized bigint DEFAULT '-1'::integer NOT NULL,
    announced bigint,
    reorganisations bigint DEFAULT 0 NOT NULL,
    deepest bigint DEFAULT 0 NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT followers_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT followers_check CHECK (((number IS NULL) = (hash IS NULL))),
    CONSTRAINT followers_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT followers_number_check CHECK ((number >= 0))
);
ALTER TABLE public.followers OWNER TO trace_data;
CREATE TABLE public.hot_trims (
    table_name text NOT NULL,
    trimmed int8multirange NOT NULL
);
ALTER TABLE public.hot_trims OWNER TO trace_data;
CREATE TABLE queue.consumers (
    queue text NOT NULL,
    consumer_id text NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamp with time zone NOT NULL
);
ALTER TABLE queue.consumers OWNER TO trace_queue;
CREATE VIEW queue.live_consumers AS
 SELECT c.queue,
    c.consumer_id
   FROM (queue.consumers c
     JOIN pg_stat_activity a ON (((a.pid = c.backend_pid) AND (a.backend_start = c.backend_start))));
ALTER VIEW queue.live_consumers OWNER TO trace_queue;
CREATE TABLE queue.messages (
    message_id bigint NOT NULL,
    queue text NOT NULL,
    body jsonb NOT NULL,
    visible_at timestamp with time zone DEFAULT now() NOT NULL,
    receives integer DEFAULT 0 NOT NULL,
    enqueued_at timestamp with time zone DEFAULT now() NOT NULL,
    bulk boolean DEFAULT false NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE queue.messages OWNER TO trace_queue;
ALTER TABLE queue.messages ALTER COLUMN message_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queue.messages_message_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
INSERT INTO public.buffer_batches VALUES
	('0ba86a62-2005-4060-bcfb-5073f93c81c8', 'ddc414c8-4776-4af2-82f7-891f5cf61770', 1, 2, '2026-11-16 21:45:04.620582+00');
INSERT INTO public.buffer_cursors VALUES
	('ddc414c8-4776-4af2-82f7-891f5cf61770', 1);
INSERT INTO public.data_migrations VALUES
	('0001_followers.sql', '2026-11-16 21:45:00.348843+00'),
	('0002_appends.sql', '2026-11-16 21:45:00.348843+00'),
	('0003_buffers.sql', '2026-11-16 21:45:00.348843+00'),
	('0004_trims_and_readers.sql', '2026-11-16 21:45:00.348843+00');
INSERT INTO public.dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2 VALUES
	('a', 1, '00000000-0000-0000-0000-000000000001', 1, 1),
	('b', 2, '00000000-0000-0000-0000-000000000001', 1, 1);
INSERT INTO queue.consumers VALUES
	('buffer', 'test:sink', 3001, '2026-11-16 21:45:04.571005+00');
INSERT INTO queue.messages OVERRIDING SYSTEM VALUE VALUES
	(1, 'ecs_python', '{"task_id": "01a1e652-151a-7c3d-96d5-892c4d1d2c3f"}', '2026-11-16 21:45:01.469125+00', 0, '2026-11-16 21:45:01.469125+00', false),
	(2, 'ecs_python', '{"task_id": "01a1e652-151b-72ef-90b1-cd8a88e6ab91"}', '2026-11-16 21:45:01.469125+00', 0, '2026-11-16 21:45:01.469125+00', false),
	(3, 'ecs_python', '{"task_id": "01a1e652-151b-7446-9f7e-95a0c33df826"}', '2026-11-16 21:45:01.469125+00', 0, '2026-11-16 21:45:01.469125+00', false),
	(4, 'ecs_python', '{"task_id": "01a1e652-165a-71c8-b735-9b4187b39191"}', '2026-11-16 21:45:01.787579+00', 0, '2026-11-16 21:45:01.787579+00', false),
	(5, 'ecs_python', '{"task_id": "01a1e652-165a-7544-929a-79e2fa4bbde6"}', '2026-11-16 21:45:01.787579+00', 0, '2026-11-16 21:45:01.787579+00', false),
	(6, 'ecs_python', '{"task_id": "01a1e652-165a-761e-b853-3ec2ca7c5fa1"}', '2026-11-16 21:45:01.787579+00', 0, '2026-11-16 21:45:01.787579+00', false),
	(7, 'ecs_python', '{"task_id": "01a1e652-17aa-70bc-a975-9fe9eb91af74"}', '2026-11-16 21:45:02.135427+00', 0, '2026-11-16 21:45:02.135427+00', true),
	(8, 'ecs_python', '{"task_id": "01a1e652-17aa-73fb-abd8-a6eacd746431"}', '2026-11-16 21:45:02.135427+00', 0, '2026-11-16 21:45:02.135427+00', true),
	(9, 'ecs_python', '{"task_id": "01a1e652-17aa-74a5-8ca6-e70526ba99ee"}', '2026-11-16 21:45:02.135427+00', 0, '2026-11-16 21:45:02.135427+00', true),
	(10, 'ecs_python', '{"task_id": "01a1e652-192d-7aa5-a6f1-c956edb646aa"}', '2026-11-16 21:45:02.522664+00', 0, '2026-11-16 21:45:02.522664+00', true),
	(11, 'ecs_python', '{"task_id": "01a1e652-192d-7d08-8937-5113e92f2a7e"}', '2026-11-16 21:45:02.522664+00', 0, '2026-11-16 21:45:02.522664+00', true),
	(12, 'ecs_python', '{"task_id": "01a1e652-192d-7d94-b685-ac1eaefcb7d1"}', '2026-11-16 21:45:02.522664+00', 0, '2026-11-16 21:45:02.522664+00', true),
	(13, 'ecs_python', '{"task_id": "01a1e652-1a26-73fc-9e2b-4d43d2cca76b"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(14, 'ecs_python', '{"task_id": "01a1e652-1a26-77ca-ae8a-23c9c7692782"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(15, 'ecs_python', '{"task_id": "01a1e652-1a26-78cc-8cfc-2655fd315939"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(16, 'ecs_python', '{"task_id": "01a1e652-1a26-796f-a409-984b5b95948c"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(17, 'ecs_python', '{"task_id": "01a1e652-1a26-79f3-8909-9b46eebd8b24"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(18, 'ecs_python', '{"task_id": "01a1e652-1a26-7a7a-bc93-2bd988a7fc49"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(19, 'ecs_python', '{"task_id": "01a1e652-1a26-7bbf-95e6-b8136c6685ec"}', '2026-11-16 21:45:02.76093+00', 0, '2026-11-16 21:45:02.76093+00', false),
	(20, 'ecs_python', '{"task_id": "01a1e652-1bee-7842-9f62-64a49c294592"}', '2026-11-16 21:45:03.221652+00', 0, '2026-11-16 21:45:03.221652+00', false),
	(21, 'ecs_python', '{"task_id": "01a1e652-1a26-79f3-8909-9b46eebd8b24"}', '2026-11-16 21:45:03.223267+00', 0, '2026-11-16 21:45:03.223267+00', false),
	(22, 'ecs_python', '{"task_id": "01a1e652-1a26-79f3-8909-9b46eebd8b24"}', '2026-11-16 21:45:03.223267+00', 0, '2026-11-16 21:45:03.223267+00', false),
	(23, 'ecs_python', '{"task_id": "01a1e652-1c08-7a49-b39b-b0c4802f5ffc"}', '2026-11-16 21:45:03.241935+00', 0, '2026-11-16 21:45:03.241935+00', false),
	(24, 'ecs_python', '{"task_id": "01a1e652-1c08-7e1e-a57c-d6d89a92bd46"}', '2026-11-16 21:45:03.241935+00', 0, '2026-11-16 21:45:03.241935+00', false),
	(25, 'ecs_python', '{"task_id": "01a1e652-1d61-76c0-83af-7dd9c072be8a"}', '2026-11-16 21:45:03.592301+00', 0, '2026-11-16 21:45:03.592301+00', true),
	(26, 'ecs_python', '{"task_id": "01a1e652-1d61-7acf-b937-2726e69c5932"}', '2026-11-16 21:45:03.592301+00', 0, '2026-11-16 21:45:03.592301+00', true),
	(27, 'ecs_python', '{"task_id": "01a1e652-1d61-7bb2-8c39-fdb79f9c42f5"}', '2026-11-16 21:45:03.592301+00', 0, '2026-11-16 21:45:03.592301+00', true),
	(28, 'ecs_python', '{"task_id": "01a1e652-1d61-7c63-8248-ea4d36d134ab"}', '2026-11-16 21:45:03.592301+00', 0, '2026-11-16 21:45:03.592301+00', true),
	(29, 'ecs_python', '{"task_id": "01a1e652-1d61-7d17-9ee1-187ecd25fc69"}', '2026-11-16 21:45:03.592301+00', 0, '2026-11-16 21:45:03.592301+00', true),
	(30, 'ecs_python', '{"task_id": "01a1e652-1d61-7e50-9c3f-6d0f86846687"}', '2026-11-16 21:45:03.592301+00', 0, '2026-11-16 21:45:03.592301+00', true),
	(31, 'ecs_python', '{"task_id": "01a1e652-1d93-7340-997c-a3a6a305b920"}', '2026-11-16 21:45:03.636107+00', 0, '2026-11-16 21:45:03.636107+00', true),
	(32, 'ecs_python', '{"task_id": "01a1e652-1e24-71ad-8fdd-96f7749a6e1c"}', '2026-11-16 21:45:03.781455+00', 0, '2026-11-16 21:45:03.781455+00', false),
	(34, 'buffer', '{"kind": "buffer_batch", "org_id": "00000000-0000-0000-0000-000000000001", "producer": {"attempt": 1, "task_id": "01a1e652-1e24-71ad-8fdd-96f7749a6e1c"}, "batch_uri": "s3://trace/buffers/1ef674a2-cc73-4cee-9bbf-ca10c8181dca/01a1e652-1e24-71ad-8fdd-96f7749a6e1c/1/453ff490185c47fdbed2742abe266058.jsonl", "publish_id": "80f92e41-7759-4679-bddf-101c56f6d07b", "dataset_uuid": "1ef674a2-cc73-4cee-9bbf-ca10c8181dca", "record_count": null, "dataset_version": "ddc414c8-4776-4af2-82f7-891f5cf61770"}', '2026-11-16 21:45:05.70344+00', 0, '2026-11-16 21:45:05.70344+00', false);
SELECT pg_catalog.setval('public.follower_rewrites_rewrite_id_seq', 1, false);
SELECT pg_catalog.setval('queue.messages_message_id_seq', 34, true);
ALTER TABLE ONLY public.append_fences
    ADD CONSTRAINT append_fences_pkey PRIMARY KEY (dataset_version, task_id);
ALTER TABLE ONLY public.buffer_batches
    ADD CONSTRAINT buffer_batches_pkey PRIMARY KEY (publish_id);
ALTER TABLE ONLY public.buffer_cursors
    ADD CONSTRAINT buffer_cursors_pkey PRIMARY KEY (dataset_version);
ALTER TABLE ONLY public.data_migrations
    ADD CONSTRAINT data_migrations_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2
    ADD CONSTRAINT dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.follower_past_tasks
    ADD CONSTRAINT follower_past_tasks_pkey PRIMARY KEY (stream, task_id);
ALTER TABLE ONLY public.follower_rewrites
    ADD CONSTRAINT follower_rewrites_pkey PRIMARY KEY (rewrite_id);
ALTER TABLE ONLY public.follower_trail
    ADD CONSTRAINT follower_trail_pkey PRIMARY KEY (stream, number);
ALTER TABLE ONLY public.followers
    ADD CONSTRAINT followers_pkey PRIMARY KEY (stream);
ALTER TABLE ONLY public.hot_trims
    ADD CONSTRAINT hot_trims_pkey PRIMARY KEY (table_name);
ALTER TABLE ONLY queue.consumers
    ADD CONSTRAINT consumers_pkey PRIMARY KEY (queue, consumer_id);
ALTER TABLE ONLY queue.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (message_id);
CREATE INDEX append_fences_updated ON public.append_fences USING btree (updated_at);
CREATE INDEX buffer_batches_sunk ON public.buffer_batches USING btree (sunk_at);
CREATE INDEX dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c84_cursor ON public.dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2 USING btree (_cursor);
CREATE INDEX follower_rewrites_stream ON public.follower_rewrites USING btree (stream, rewrite_id);
CREATE INDEX messages_urgent ON queue.messages USING btree (message_id) WHERE (NOT bulk);
CREATE INDEX messages_visible ON queue.messages USING btree (queue, visible_at, message_id);
ALTER TABLE ONLY public.follower_past_tasks
    ADD CONSTRAINT follower_past_tasks_stream_fkey FOREIGN KEY (stream) REFERENCES public.followers(stream) ON DELETE CASCADE;
ALTER TABLE ONLY public.follower_rewrites
    ADD CONSTRAINT follower_rewrites_stream_fkey FOREIGN KEY (stream) REFERENCES public.followers(stream) ON DELETE CASCADE;
ALTER TABLE ONLY public.follower_trail
    ADD CONSTRAINT follower_trail_stream_fkey FOREIGN KEY (stream) REFERENCES public.followers(stream) ON DELETE CASCADE;
GRANT SELECT ON TABLE public.dataset_1ef674a2cc734cee9bbfca10c8181dca_ddc414c847764af2 TO trace_data_reader;
