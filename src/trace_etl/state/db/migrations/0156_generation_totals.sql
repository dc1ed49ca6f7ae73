-- How many partitions, rows, bytes and blocks each generation has, so that no query counts a million partitions.
-- A statement that changes partitions adds a row with the difference: commits of one generation do not wait for
-- each other. The task counter merges the rows of a generation.
CREATE TABLE generation_totals (
    dataset_version  uuid NOT NULL,
    partitions       bigint NOT NULL,
    row_count        bigint NOT NULL,
    byte_count       bigint NOT NULL,
    blocks           bigint NOT NULL
);
COMMENT ON TABLE generation_totals IS 'The totals of a generation are the sums of its rows';
CREATE INDEX generation_totals_version ON generation_totals (dataset_version);

CREATE FUNCTION add_partitions_to_totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO generation_totals (dataset_version, partitions, row_count, byte_count, blocks)
    SELECT dataset_version, count(*), sum(row_count), sum(byte_count),
           coalesce(sum(range_end - range_start + 1), 0)
      FROM changed GROUP BY dataset_version;
    RETURN NULL;
END
$$;
CREATE FUNCTION subtract_partitions_from_totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO generation_totals (dataset_version, partitions, row_count, byte_count, blocks)
    SELECT dataset_version, -count(*), -sum(row_count), -sum(byte_count),
           -coalesce(sum(range_end - range_start + 1), 0)
      FROM changed GROUP BY dataset_version;
    RETURN NULL;
END
$$;
-- A commit that replaces a partition keeps its generation and its blocks.
CREATE FUNCTION add_replacement_to_totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO generation_totals (dataset_version, partitions, row_count, byte_count, blocks)
    VALUES (NEW.dataset_version, 0, NEW.row_count - OLD.row_count, NEW.byte_count - OLD.byte_count, 0);
    RETURN NULL;
END
$$;
CREATE TRIGGER partitions_added AFTER INSERT ON partitions REFERENCING NEW TABLE AS changed
   FOR EACH STATEMENT EXECUTE FUNCTION add_partitions_to_totals();
CREATE TRIGGER partitions_subtracted AFTER DELETE ON partitions REFERENCING OLD TABLE AS changed
   FOR EACH STATEMENT EXECUTE FUNCTION subtract_partitions_from_totals();
CREATE TRIGGER partitions_resized AFTER UPDATE OF row_count, byte_count ON partitions
   FOR EACH ROW WHEN ((OLD.row_count, OLD.byte_count) IS DISTINCT FROM (NEW.row_count, NEW.byte_count))
   EXECUTE FUNCTION add_replacement_to_totals();

INSERT INTO generation_totals (dataset_version, partitions, row_count, byte_count, blocks)
SELECT dataset_version, count(*), sum(row_count), sum(byte_count),
       coalesce(sum(range_end - range_start + 1), 0)
  FROM partitions GROUP BY dataset_version;
