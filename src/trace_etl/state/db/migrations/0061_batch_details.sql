-- Published batches as people see them.
CREATE VIEW batch_details AS
SELECT b.org_id, b.publish_no, b.publish_id, b.dataset_uuid, b.dataset_version,
       coalesce(n.dataset, '') AS dataset, coalesce(g.name, '') AS dag, coalesce(j.name, '') AS job,
       b.task_id, b.attempt, b.batch_uri, b.content_type, b.record_count, b.batch_size_bytes,
       CASE WHEN b.sunk_at IS NOT NULL THEN 'written' WHEN b.failed_at IS NOT NULL THEN 'failed'
            ELSE 'waiting' END AS state,
       b.row_count, b.cursor_value AS cursor, b.accepted_at,
       coalesce(b.sunk_at, b.failed_at) AS ended_at, b.error_code, b.error_message
  FROM buffer_publishes b
  LEFT JOIN dataset_names n USING (dataset_uuid)
  LEFT JOIN tasks t ON t.task_id = b.task_id
  LEFT JOIN jobs j ON j.job_id = t.job_id
  LEFT JOIN dags g ON g.dag_id = j.dag_id;
