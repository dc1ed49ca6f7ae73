-- The partition map counts partitions by block. `range_end` is included, so that it reads the index only.
CREATE INDEX partitions_blocks ON partitions (dataset_version, range_start) INCLUDE (range_end);
