-- A removed DAG keeps its row, because tasks and datasets refer to it. Without `keeps_data`, its name is free:
-- `removed_name` is the name that it had. Its partitions are then deleted in batches, and their objects are
-- swept after the retention of superseded objects.
ALTER TABLE dags
    ADD removed_at    timestamptz,
    ADD removed_name  text,
    ADD keeps_data    boolean NOT NULL DEFAULT false,
    ADD CHECK (removed_at IS NULL OR dag_version IS NULL);
CREATE INDEX dags_to_empty ON dags (removed_at) WHERE removed_at IS NOT NULL AND NOT keeps_data;
