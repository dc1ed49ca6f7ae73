-- How the code of an attempt was isolated: `namespaces` or `lambda`. Null: code of the platform, or an attempt
-- whose worker did not report its end.
ALTER TABLE task_attempts ADD COLUMN isolation text;
