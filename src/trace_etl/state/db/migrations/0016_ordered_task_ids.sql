-- Task ids in creation order, if the server can generate them (Postgres 18): the newest tasks share
-- the last pages of every index. With random ids, each claim would write and log in full a separate
-- page among millions.
DO $$
BEGIN
    IF to_regprocedure('pg_catalog.uuidv7()') IS NOT NULL THEN
        ALTER TABLE tasks ALTER COLUMN task_id SET DEFAULT uuidv7();
        ALTER TABLE events ALTER COLUMN event_id SET DEFAULT uuidv7();
    END IF;
END
$$;
