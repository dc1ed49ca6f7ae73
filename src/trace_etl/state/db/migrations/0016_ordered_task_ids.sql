-- Ids in the order of their making, where the server can draw them (Postgres 18): the newest tasks
-- share the last pages of every index. With random ones each claim would write, and log in full, a
-- page of its own among millions.
DO $$
BEGIN
    IF to_regprocedure('pg_catalog.uuidv7()') IS NOT NULL THEN
        ALTER TABLE tasks ALTER COLUMN task_id SET DEFAULT uuidv7();
        ALTER TABLE events ALTER COLUMN event_id SET DEFAULT uuidv7();
    END IF;
END
$$;
