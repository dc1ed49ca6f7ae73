-- Blocks deleted from a hot table because a cold dataset holds them. A rebuild of the cold dataset
-- must not treat them as empty blocks.
CREATE TABLE hot_trims (
    table_name  text PRIMARY KEY,
    trimmed     int8multirange NOT NULL
);

-- The Query Service may read datasets and nothing else of this database.
DO $$
DECLARE
    found text;
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'trace_data_reader') THEN
        FOR found IN SELECT tablename FROM pg_tables
                      WHERE schemaname = current_schema() AND tablename LIKE 'dataset\_%'
                        AND tableowner = current_user LOOP
            EXECUTE format('GRANT SELECT ON %I TO trace_data_reader', found);
        END LOOP;
    END IF;
END
$$;
