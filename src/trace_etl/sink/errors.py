"""Errors of batches."""

from trace_etl.model.errors import TraceError


class BadBatch(TraceError, code="bad_batch"):
    """The batch is invalid and will never be written."""


class BatchMissing(TraceError, code="batch_missing", retryable=True):
    """The file of the batch is missing, or cannot be read now."""
