-- What the rules of notifications watch. Tables of followers and buffered datasets have no partitions, so
-- no rule about partitions watches them; a rule about reorganisations watches every output of its DAG.

CREATE OR REPLACE VIEW watched_datasets AS
SELECT r.org_id, r.dag_id, r.dag, r.name AS rule, r.event, r.url, r.secret, r.after_seconds,
       r.deeper_than, r.deployed_at, p.name AS dataset, d.dataset_uuid, d.dataset_version
  FROM notification_rules r
  JOIN jobs j ON j.dag_id = r.dag_id AND j.active
  JOIN job_revisions v ON v.revision_id = j.revision_id
   AND v.source ->> 'kind' IS DISTINCT FROM 'always_on'
  JOIN datasets d ON d.job_id = j.job_id AND d.dataset_version IS NOT NULL
  JOIN publications p ON p.dataset_uuid = d.dataset_uuid AND p.write_mode = 'replace'
 WHERE r.datasets IS NULL OR p.name = ANY (r.datasets);

-- An output has the published name that shows its rows, also as the hot part, or the names of its DAG,
-- job and output.
CREATE VIEW watched_outputs AS
SELECT r.org_id, r.dag_id, r.dag, r.name AS rule, r.event, r.url, r.secret, r.deeper_than,
       r.deployed_at, coalesce(p.name, concat_ws('.', r.dag, j.name, d.output_name)) AS dataset,
       p.name IS NOT NULL AS is_published, d.dataset_uuid
  FROM notification_rules r
  JOIN jobs j ON j.dag_id = r.dag_id AND j.active
  JOIN datasets d ON d.job_id = j.job_id
  LEFT JOIN publications p ON d.dataset_uuid IN (p.dataset_uuid, p.hot_dataset_uuid)
 WHERE r.event = 'reorganisation' AND (r.datasets IS NULL OR p.name = ANY (r.datasets));

-- The invalidations that a reorganisation caused at the chain's reader: a follower replaced rows of its
-- tables, or a task read provisional blocks again and the chain had dropped some of them.
CREATE VIEW reorganisations AS
SELECT i.* FROM invalidations i JOIN tasks t ON t.task_id = i.task_id
  JOIN job_revisions r ON r.revision_id = t.revision_id
 WHERE i.range_start IS NOT NULL
   AND (r.source ->> 'kind' = 'always_on'
        OR (t.dedupe_key LIKE 'recheck:%' AND i.once_key LIKE 'rewritten:%'));
