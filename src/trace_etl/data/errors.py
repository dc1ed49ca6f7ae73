"""Errors of Postgres data."""

from trace_etl.model.errors import TraceError


class DataUnavailable(TraceError):
    """The database does not answer, or the connection broke."""

    code = "data_unavailable"
    retryable = True


class KeyMissing(TraceError):
    """A row has no value in a column of its table's key."""

    code = "key_missing"


class ValueRefused(TraceError):
    """A column of the table cannot store a value."""

    code = "value_refused"


class StaleWriter(TraceError):
    """A later attempt has taken over, so this attempt must not write."""

    code = "lease_lost"


class OtherChain(TraceError):
    """The dataset holds one chain, and the node serves another."""

    code = "other_chain"


def first_line(error: Exception) -> str:
    """Return a driver's message without its hints and context."""
    return str(error).strip().partition("\n")[0]
