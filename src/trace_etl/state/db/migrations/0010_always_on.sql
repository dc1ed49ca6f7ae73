-- Always-on sources, and the position that each of them has reported.
CREATE INDEX job_revisions_always_on ON job_revisions (job_id, generation_hash)
 WHERE source ->> 'kind' = 'always_on';
CREATE INDEX events_producer_cursor ON events (producer_task_id, cursor_value)
 WHERE cursor_value IS NOT NULL;
