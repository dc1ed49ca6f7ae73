-- What a completion reports about its outputs, kept with the attempt and with the partition.
ALTER TABLE task_attempts ADD outputs jsonb;
ALTER TABLE partitions ADD config_hash text;

-- No listing visits the prefix of an attempt that publishes batches without the dataset in their key. The
-- sweeper deletes what is left there after the attempt, except published batches.
CREATE FUNCTION note_short_buffer_prefix() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO unused_prefixes (prefix, kind, org_id, task_id, attempt)
    VALUES ('buffers/' || NEW.task_id || '/' || NEW.attempt || '/', 'uncommitted', NEW.org_id,
            NEW.task_id, NEW.attempt)
    ON CONFLICT (prefix) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER buffer_publishes_short_prefix AFTER INSERT ON buffer_publishes
   FOR EACH ROW WHEN (NEW.batch_uri LIKE '%/buffers/' || NEW.task_id || '/' || NEW.attempt || '/%')
   EXECUTE FUNCTION note_short_buffer_prefix();
