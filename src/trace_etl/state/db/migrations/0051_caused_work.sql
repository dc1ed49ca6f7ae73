-- The events and tasks that a trigger or a deploy caused, for callers that wait for them.

-- The first refresh of a partition that started after a time, or that has not started yet.
CREATE FUNCTION first_refresh(of_job uuid, of_generation text, of_key text, after timestamptz)
RETURNS uuid LANGUAGE sql STABLE
RETURN (SELECT t.task_id FROM tasks t JOIN job_revisions r USING (revision_id)
         WHERE t.job_id = of_job AND t.partition_key = of_key AND t.is_refresh
           AND r.generation_hash = of_generation AND coalesce(t.started_at >= after, true)
         ORDER BY t.started_at NULLS LAST, t.task_id LIMIT 1);

-- The tasks of a DAG that events cause. A scope that had a task before the event has that task.
CREATE FUNCTION tasks_of_events(of_dag uuid, event_ids uuid[])
RETURNS TABLE (task_id uuid) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT t.task_id
      FROM events e
      JOIN reactive_inputs c ON c.dataset_uuid = e.dataset_uuid AND (c.job).dag_id = of_dag
      JOIN tasks t ON t.job_id = c.job_id
       AND t.dedupe_key = concat_ws(':', c.trigger_dataset, c.trigger_version, c.generation_hash,
                                    e.scope_key)
     WHERE e.event_id = ANY (event_ids)
     UNION
    SELECT first_refresh(c.job_id, c.generation_hash, 'all', e.accepted_at)
      FROM events e
      JOIN reactive_inputs c ON c.dataset_uuid = e.dataset_uuid AND (c.job).dag_id = of_dag
       AND c.is_whole AND c.reads
     WHERE e.event_id = ANY (event_ids);
END;

-- The tasks of a DAG that other tasks cause without an event: reruns for what they rewrote, and repeats.
CREATE FUNCTION tasks_of_tasks(of_dag uuid, task_ids uuid[])
RETURNS TABLE (task_id uuid) LANGUAGE sql STABLE BEGIN ATOMIC
    SELECT c.task_id
      FROM invalidations i JOIN invalidation_consumers c USING (invalidation_id)
      JOIN jobs j ON j.job_id = c.job_id AND j.dag_id = of_dag
     WHERE i.task_id = ANY (task_ids)
     UNION
    SELECT r.task_id
      FROM unnest(task_ids) AS a (id) JOIN tasks t ON t.task_id = a.id
      JOIN tasks r ON r.job_id = t.job_id AND r.dedupe_key = 'again:' || t.task_id
     UNION
    SELECT first_refresh(t.job_id, r.generation_hash, k.time_key, t.finished_at)
      FROM unnest(task_ids) AS a (id) JOIN tasks t ON t.task_id = a.id
      JOIN job_revisions r ON r.revision_id = t.revision_id AND r.partition_by IS NOT NULL
      JOIN time_keys k ON k.job_id = t.job_id AND k.generation_hash = r.generation_hash
       AND k.input_key = t.partition_key AND k.time_key <> ''
     WHERE NOT t.is_refresh AND t.status = 'Completed';
END;

-- Everything in a DAG that events and tasks caused, directly and indirectly, with the events and tasks.
CREATE FUNCTION caused_work(of_dag uuid, event_ids uuid[], task_ids uuid[])
RETURNS TABLE (event_id uuid, task_id uuid) LANGUAGE plpgsql STABLE AS $$
DECLARE
    all_events  uuid[] := '{}';
    all_tasks   uuid[] := '{}';
    new_events  uuid[] := event_ids;
    new_tasks   uuid[] := task_ids;
BEGIN
    WHILE cardinality(new_events) + cardinality(new_tasks) > 0 LOOP
        all_events := all_events || new_events;
        all_tasks := all_tasks || new_tasks;
        SELECT coalesce(array_agg(DISTINCT f.task_id), '{}') INTO task_ids
          FROM (SELECT t.task_id FROM tasks_of_events(of_dag, new_events) t
                 UNION ALL
                SELECT t.task_id FROM tasks_of_tasks(of_dag, new_tasks) t) f
         WHERE f.task_id IS NOT NULL
           AND NOT EXISTS (SELECT FROM unnest(all_tasks) AS a (id) WHERE a.id = f.task_id);
        SELECT coalesce(array_agg(e.event_id), '{}') INTO event_ids
          FROM events e
         WHERE e.producer_task_id = ANY (new_tasks)
           AND NOT EXISTS (SELECT FROM unnest(all_events) AS a (id) WHERE a.id = e.event_id);
        new_events := event_ids;
        new_tasks := task_ids;
    END LOOP;
    RETURN QUERY SELECT a.id, NULL::uuid FROM unnest(all_events) AS a (id)
                  UNION ALL SELECT NULL, a.id FROM unnest(all_tasks) AS a (id);
END
$$;
