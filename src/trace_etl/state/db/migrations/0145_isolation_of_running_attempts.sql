-- How the code of the current attempt is isolated, from the start of its sandbox. It is copied into
-- `task_attempts` when the attempt ends, however it ends.
ALTER TABLE tasks ADD COLUMN isolation text;
