-- How many batches have changed a buffered dataset: rows carry the number that last changed them.
-- The row is locked while a batch is written, so numbers become visible in their order.
CREATE TABLE buffer_cursors (
    dataset_version  uuid PRIMARY KEY,
    cursor_value     bigint NOT NULL
);

-- The batches that were written: one that is delivered again changes nothing.
CREATE TABLE buffer_batches (
    publish_id       uuid PRIMARY KEY,
    dataset_version  uuid NOT NULL,
    cursor_value     bigint,
    row_count        bigint NOT NULL,
    sunk_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX buffer_batches_sunk ON buffer_batches (sunk_at);
