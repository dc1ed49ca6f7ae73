-- Task ids in creation order, if the server can generate them (Postgres 18). The newest tasks then
-- share the last pages of every index. With random ids, each claim would change another one of millions
-- of pages, and Postgres would write each changed page in full to its log.
DO $$
BEGIN
    IF to_regprocedure('pg_catalog.uuidv7()') IS NOT NULL THEN
        ALTER TABLE tasks ALTER COLUMN task_id SET DEFAULT uuidv7();
        ALTER TABLE events ALTER COLUMN event_id SET DEFAULT uuidv7();
    END IF;
END
$$;
