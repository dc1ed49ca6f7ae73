-- The number of batches written to a buffered dataset. Rows carry the number of their last change.
-- The row is locked while a batch is written, so numbers become visible in order.
CREATE TABLE buffer_cursors (
    dataset_version  uuid PRIMARY KEY,
    cursor_value     bigint NOT NULL
);

-- Written batches. A batch that is delivered again changes nothing.
CREATE TABLE buffer_batches (
    publish_id       uuid PRIMARY KEY,
    dataset_version  uuid NOT NULL,
    cursor_value     bigint,
    row_count        bigint NOT NULL,
    sunk_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX buffer_batches_sunk ON buffer_batches (sunk_at);
