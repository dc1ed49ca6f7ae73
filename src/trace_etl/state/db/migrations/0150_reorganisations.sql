-- Whether an invalidation is due to a reorganisation of the chain: the reporting task says so. Until now, the
-- beginning of its reason did.
ALTER TABLE invalidations ADD is_reorganisation boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN invalidations.is_reorganisation IS 'The chain replaced these blocks';
ALTER TYPE new_invalidation ADD ATTRIBUTE is_reorganisation boolean;
UPDATE invalidations SET is_reorganisation = true
 WHERE reason LIKE 'reorganisation%' AND made_by NOT LIKE 'user:%'
   AND (once_key IS NULL OR once_key NOT LIKE 'doubt:%');

CREATE OR REPLACE FUNCTION reason_of_invalidation(i invalidations) RETURNS text LANGUAGE sql STABLE
RETURN CASE WHEN i.is_reorganisation THEN 'reorganisation' ELSE 'repair' END;

-- Whether a rewrite by a task is due to a reorganisation: of its input, or of provisional blocks that it read
-- again. `is_own`: the reporting task said so itself.
CREATE FUNCTION is_due_to_reorganisation(is_own boolean, once_key text, by_task uuid) RETURNS boolean
LANGUAGE sql STABLE
RETURN coalesce(is_own, false)
    OR coalesce(once_key LIKE 'rewritten:%' AND reason_of_task(by_task, true) = 'reorganisation', false);
