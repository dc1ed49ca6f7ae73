"""Errors of Postgres data."""

from trace_etl.model.errors import TraceError


class DataUnavailable(TraceError, code="data_unavailable", retryable=True):
    """The database does not answer, or the connection broke."""


class KeyMissing(TraceError, code="key_missing"):
    """A row has no value in a column of its table's key."""


class ValueRefused(TraceError, code="value_refused"):
    """A column of the table cannot store a value."""


class ColumnsChanged(TraceError, code="columns_changed"):
    """The columns of a result do not fit those of its table. Only new columns can be added."""


class StaleWriter(TraceError, code="lease_lost"):
    """A later attempt has taken over, so this attempt must not write."""


class OtherChain(TraceError, code="other_chain"):
    """The node serves another chain than the one in the dataset."""


def first_line(error: Exception) -> str:
    """Return a driver's message without its hints and context."""
    return str(error).strip().partition("\n")[0]
