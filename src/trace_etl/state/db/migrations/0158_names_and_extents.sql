-- The first and the last block of a generation: ends of an index, because the planner would answer min() and
-- max() with a scan. Null without block ranges.
CREATE FUNCTION first_block(generation uuid) RETURNS bigint LANGUAGE sql STABLE
RETURN (SELECT range_start FROM partitions
         WHERE dataset_version = generation AND range_start IS NOT NULL
         ORDER BY range_start LIMIT 1);

CREATE FUNCTION last_block(generation uuid) RETURNS bigint LANGUAGE sql STABLE
RETURN (SELECT range_end FROM partitions
         WHERE dataset_version = generation AND range_start IS NOT NULL
         ORDER BY range_start DESC LIMIT 1);

-- The outputs that write a dataset, as `dag.job.output`. Only a buffered dataset has several.
CREATE FUNCTION producers_of(dataset uuid) RETURNS text[] LANGUAGE sql STABLE
RETURN ARRAY(SELECT concat_ws('.', g.name, j.name, w.output_name)
               FROM dataset_producers w JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
              WHERE w.dataset_uuid = dataset ORDER BY 1);

-- The output of a dataset with one producer, as `job.output`.
CREATE FUNCTION output_of(dataset uuid) RETURNS text LANGUAGE sql STABLE
RETURN (SELECT concat_ws('.', j.name, d.output_name) FROM datasets d JOIN jobs j USING (job_id)
         WHERE d.dataset_uuid = dataset);
