-- The delivery log: what was published, replaced or invalidated in each dataset, in an order to which
-- nothing is ever added behind a number that a reader has seen.
--
-- A transaction that changes a dataset adds rows without a number. `number_deliveries` numbers the committed
-- ones later, one pass at a time. So numbers follow the order of commits, and neither a sequence nor a lock
-- makes commits wait for each other.

-- `log_id` changes when a backup is restored: numbers that were read before may be given again.
CREATE TABLE delivery_log (
    only_one  boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    log_id    uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO delivery_log DEFAULT VALUES;

CREATE TABLE deliveries (
    delivery_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset_uuid     uuid NOT NULL,
    dataset_version  uuid,
    number           bigint,
    kind             text NOT NULL
                     CHECK (kind IN ('published', 'replaced', 'appended', 'invalidated', 'version')),
    reason           text,
    partition_key    text,
    range_start      bigint,
    range_end        bigint,
    cursor_value     bigint,
    old_hash         text,
    new_hash         text,
    row_count        bigint,
    rows_from        uuid,
    task_id          uuid,
    attempt          integer,
    invalidation_id  uuid,
    changed_at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN deliveries.number IS 'Position in the log of the dataset, from 1 without gaps; NULL: not numbered yet';
COMMENT ON COLUMN deliveries.cursor_value IS 'The table has all rows up to this cursor';
COMMENT ON COLUMN deliveries.rows_from IS 'The dataset whose rows a compaction kept';
CREATE INDEX deliveries_new ON deliveries (delivery_id) WHERE number IS NULL;
CREATE UNIQUE INDEX deliveries_numbers ON deliveries (dataset_uuid, number) WHERE number IS NOT NULL;

-- The end of the log of each dataset, and the generation and the cursor that its readers know.
CREATE TABLE delivery_heads (
    dataset_uuid     uuid PRIMARY KEY,
    number           bigint NOT NULL DEFAULT 0,
    deleted_to       bigint NOT NULL DEFAULT 0,  -- retention has deleted the numbers up to here
    dataset_version  uuid,
    cursor_value     bigint
);

-- --- rows of the log --------------------------------------------------------------------------
-- Partition commits write their own rows, in the statement that moves the pointers.

-- Tables in Postgres data have no partitions: events announce their rows.
CREATE FUNCTION note_appended_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.cursor_value IS NULL AND NOT EXISTS (
        SELECT FROM tasks t JOIN job_revisions r USING (revision_id)
         WHERE t.task_id = NEW.producer_task_id AND r.update_strategy = 'append') THEN
        RETURN NULL;
    END IF;
    INSERT INTO deliveries (dataset_uuid, dataset_version, kind, partition_key, range_start, range_end,
                            cursor_value, task_id, attempt)
    VALUES (NEW.dataset_uuid, NEW.dataset_version, 'appended', NEW.partition_key, NEW.range_start,
            NEW.range_end, NEW.cursor_value, NEW.producer_task_id, NEW.attempt);
    RETURN NULL;
END
$$;
CREATE TRIGGER events_delivered AFTER INSERT ON events
   FOR EACH ROW WHEN (NEW.cursor_value IS NOT NULL OR NEW.range_start IS NOT NULL)
   EXECUTE FUNCTION note_appended_rows();

-- A rewrite is not an invalidation for readers: the commit has logged it.
CREATE FUNCTION note_invalid_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deliveries (dataset_uuid, dataset_version, kind, partition_key, range_start, range_end,
                            task_id, attempt, invalidation_id)
    VALUES (NEW.dataset_uuid, NEW.dataset_version, 'invalidated', NEW.partition_key, NEW.range_start,
            NEW.range_end, NEW.task_id, NEW.attempt, NEW.invalidation_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER invalidations_delivered AFTER INSERT ON invalidations
   FOR EACH ROW WHEN (NEW.once_key IS NULL OR NEW.once_key NOT LIKE 'rewritten:%')
   EXECUTE FUNCTION note_invalid_rows();

CREATE FUNCTION note_visible_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deliveries (dataset_uuid, dataset_version, kind, reason)
    VALUES (NEW.dataset_uuid, NEW.dataset_version, 'version',
            coalesce(nullif(current_setting('trace.delivery_reason', true), ''), 'deploy'));
    RETURN NULL;
END
$$;
CREATE TRIGGER datasets_delivered AFTER UPDATE OF dataset_version ON datasets
   FOR EACH ROW WHEN (OLD.dataset_version IS DISTINCT FROM NEW.dataset_version)
   EXECUTE FUNCTION note_visible_version();
CREATE TRIGGER datasets_first_delivered AFTER INSERT ON datasets
   FOR EACH ROW WHEN (NEW.dataset_version IS NOT NULL) EXECUTE FUNCTION note_visible_version();

INSERT INTO deliveries (dataset_uuid, dataset_version, kind, reason)
SELECT dataset_uuid, dataset_version, 'version', 'log_begins' FROM datasets
 WHERE dataset_version IS NOT NULL;

-- --- numbers ----------------------------------------------------------------------------------

CREATE FUNCTION reason_of_invalidation(i invalidations) RETURNS text LANGUAGE sql STABLE
RETURN CASE WHEN i.once_key LIKE 'doubt:%' OR i.made_by LIKE 'user:%' THEN 'repair'
            WHEN i.reason LIKE 'reorganisation%' THEN 'reorganisation'
            ELSE 'repair' END;

-- Why a task wrote rows. A task that processes a rewrite has the reason of the task that rewrote.
CREATE FUNCTION reason_of_task(of_task uuid, is_rewrite boolean) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    t    tasks;
    i    invalidations;
    bulk boolean;
BEGIN
    FOR step IN 1..100 LOOP
        SELECT * INTO t FROM tasks WHERE task_id = of_task;
        SELECT * INTO i FROM invalidations WHERE invalidation_id = t.invalidation_id;
        EXIT WHEN i.invalidation_id IS NULL;
        IF i.once_key IS NULL OR i.once_key NOT LIKE 'rewritten:%' THEN
            RETURN reason_of_invalidation(i);
        END IF;
        of_task := i.task_id;
        is_rewrite := true;
    END LOOP;
    -- Bulk work of a job with normal priority is a backfill, or follows from one.
    bulk := t.bulk AND (SELECT priority <> 'bulk' FROM job_revisions WHERE revision_id = t.revision_id);
    RETURN CASE WHEN t.dedupe_key LIKE 'rebuild:%' THEN 'repair'
                WHEN bulk AND is_rewrite THEN 'rebuild'
                WHEN bulk THEN 'backfill'
                WHEN t.is_refresh THEN 'refresh'
                WHEN is_rewrite THEN 'rebuild'
                ELSE 'new' END;
END
$$;

-- The dataset whose rows a task kept unchanged: the last input of an operator that keeps rows.
CREATE FUNCTION rows_kept_from(of_task uuid, keepers text[]) RETURNS uuid LANGUAGE sql STABLE
RETURN (SELECT i.dataset_uuid
          FROM tasks t JOIN job_revisions r USING (revision_id) JOIN job_inputs i USING (revision_id)
         WHERE t.task_id = of_task AND r.operator = ANY (keepers)
         ORDER BY i.input_index DESC LIMIT 1);

-- The new state of a log's end after a row, and the row as readers see it. NULL: not a change for readers.
CREATE FUNCTION describe_delivery(d deliveries, INOUT head delivery_heads, keepers text[], OUT seen deliveries)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    i  invalidations;
BEGIN
    IF d.kind = 'version' THEN
        IF head.dataset_version IS DISTINCT FROM d.dataset_version THEN
            seen := d;
            head.dataset_version := d.dataset_version;
            -- A reader that reads the whole generation now has the rows of every committed event.
            head.cursor_value := (SELECT max(cursor_value) FROM events
                                   WHERE dataset_version = d.dataset_version);
        END IF;
        RETURN;
    END IF;
    IF head.dataset_version IS DISTINCT FROM d.dataset_version THEN
        RETURN;  -- a generation that readers do not see
    END IF;
    IF d.kind = 'invalidated' THEN
        SELECT * INTO i FROM invalidations WHERE invalidation_id = d.invalidation_id;
        d.reason := coalesce(reason_of_invalidation(i), 'repair');
        -- A follower reports a reorganisation after it has replaced the rows.
        IF d.reason = 'reorganisation' AND NOT EXISTS (
            SELECT FROM partitions WHERE dataset_version = d.dataset_version) THEN
            d.kind := 'replaced';
        END IF;
    ELSE
        d.reason := reason_of_task(d.task_id, d.kind = 'replaced');
    END IF;
    IF d.cursor_value IS NOT NULL THEN
        IF d.cursor_value <= head.cursor_value THEN
            -- A shorter chain moves the cursor of a follower back. Batches may be announced in any order.
            IF (SELECT job_id IS NOT NULL FROM datasets WHERE dataset_uuid = d.dataset_uuid) THEN
                head.cursor_value := d.cursor_value;
            END IF;
            RETURN;
        END IF;
        d.range_start := head.cursor_value + 1;
        d.range_end := d.cursor_value;
        head.cursor_value := d.cursor_value;
    ELSIF d.kind = 'appended' AND d.reason IN ('reorganisation', 'repair', 'rebuild') THEN
        d.kind := 'replaced';
    ELSIF d.kind = 'published' THEN
        d.rows_from := rows_kept_from(d.task_id, keepers);
    END IF;
    seen := d;
END
$$;

-- Number committed rows in the order in which they were written. Returns how many rows were handled. A
-- statement that waited for the lock sees what was committed meanwhile, because it has its own snapshot.
CREATE FUNCTION number_deliveries(most integer, keepers text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    d          deliveries;
    seen       deliveries;
    head       delivery_heads;
    described  record;
    handled    integer := 0;
BEGIN
    PERFORM FROM delivery_log FOR UPDATE;
    FOR d IN SELECT * FROM deliveries WHERE number IS NULL ORDER BY delivery_id LIMIT most LOOP
        handled := handled + 1;
        INSERT INTO delivery_heads (dataset_uuid) VALUES (d.dataset_uuid) ON CONFLICT DO NOTHING;
        SELECT * INTO head FROM delivery_heads WHERE dataset_uuid = d.dataset_uuid;
        SELECT * INTO described FROM describe_delivery(d, head, keepers);
        head := described.head;
        seen := described.seen;
        IF seen.delivery_id IS NULL THEN
            DELETE FROM deliveries WHERE delivery_id = d.delivery_id;
        ELSE
            head.number := head.number + 1;
            UPDATE deliveries
               SET number = head.number, kind = seen.kind, reason = seen.reason,
                   range_start = seen.range_start, range_end = seen.range_end,
                   rows_from = seen.rows_from
             WHERE delivery_id = d.delivery_id;
        END IF;
        UPDATE delivery_heads
           SET number = head.number, dataset_version = head.dataset_version,
               cursor_value = head.cursor_value
         WHERE dataset_uuid = d.dataset_uuid;
    END LOOP;
    RETURN handled;
END
$$;
