-- The datasets that a dataset is made from (`up`) or that are made from it (`down`), by deployed definitions.
CREATE FUNCTION neighbours_of_dataset(direction text, of_dataset uuid) RETURNS SETOF uuid LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT i.dataset_uuid
      FROM dataset_producers d JOIN jobs j ON j.job_id = d.job_id
      JOIN job_inputs i ON i.revision_id = j.revision_id
     WHERE direction = 'up' AND d.dataset_uuid = of_dataset
     UNION ALL
    SELECT o.dataset_uuid
      FROM job_inputs i JOIN jobs j ON j.revision_id = i.revision_id AND j.active
      JOIN job_outputs o ON o.revision_id = j.revision_id
     WHERE direction = 'down' AND i.dataset_uuid = of_dataset;
END;

-- Each generation belongs to the revisions of jobs that write it, and these name the generations that they
-- read. An input of another DAG names no generation: its current one is used.
CREATE FUNCTION neighbours_of_generation(direction text, of_version uuid) RETURNS SETOF uuid LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(i.dataset_version, d.dataset_version)
      FROM dataset_versions v JOIN job_outputs o USING (dataset_uuid)
      JOIN job_inputs i ON i.revision_id = o.revision_id
      JOIN datasets d ON d.dataset_uuid = i.dataset_uuid
     WHERE direction = 'up' AND v.dataset_version = of_version AND o.dataset_version = of_version
     UNION ALL
    SELECT o.dataset_version
      FROM dataset_versions v JOIN datasets d USING (dataset_uuid) JOIN job_inputs i USING (dataset_uuid)
      JOIN job_outputs o ON o.revision_id = i.revision_id
     WHERE direction = 'down' AND v.dataset_version = of_version
       AND coalesce(i.dataset_version, d.dataset_version) = of_version;
END;

-- All datasets upstream and downstream of a dataset, or of a generation, with the distance to each.
CREATE FUNCTION walk_lineage(of_dataset uuid, of_version uuid, max_depth integer)
RETURNS TABLE (direction text, depth integer, dataset_uuid uuid) LANGUAGE sql STABLE BEGIN ATOMIC
    WITH RECURSIVE found (direction, depth, dataset_uuid, dataset_version) AS (
        SELECT w.direction, 0, of_dataset, of_version FROM (VALUES ('up'), ('down')) AS w (direction)
         UNION
        SELECT f.direction, f.depth + 1, n.dataset_uuid, n.dataset_version
          FROM found f
         CROSS JOIN LATERAL (
               SELECT u, NULL::uuid FROM neighbours_of_dataset(f.direction, f.dataset_uuid) u
                WHERE of_dataset IS NOT NULL
                UNION ALL
               SELECT NULL, v FROM neighbours_of_generation(f.direction, f.dataset_version) v
                WHERE of_version IS NOT NULL
         ) AS n (dataset_uuid, dataset_version)
         WHERE f.depth < max_depth
    )
    SELECT f.direction, min(f.depth), coalesce(f.dataset_uuid, v.dataset_uuid)
      FROM found f LEFT JOIN dataset_versions v ON v.dataset_version = f.dataset_version
     WHERE f.depth > 0
     GROUP BY 1, 3;
END;
