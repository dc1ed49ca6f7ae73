-- What was verified of a partition's blocks before it was committed: see `VerifiedRange` in the API.
ALTER TABLE partitions ADD COLUMN verified jsonb;

COMMENT ON COLUMN partitions.verified IS
    'What was verified of the blocks, by which rules, from which endpoints; NULL: not read from a chain';
