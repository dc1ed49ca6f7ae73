"""What can go wrong with Postgres data."""

from trace_etl.model.errors import TraceError


class DataUnavailable(TraceError):
    """The database does not answer, or broke off in the middle."""

    code = "data_unavailable"
    retryable = True


class KeyMissing(TraceError):
    """A row without a value in a column of its table's key."""

    code = "key_missing"


class ValueRefused(TraceError):
    """A value that a column of its table cannot hold."""

    code = "value_refused"


class StaleWriter(TraceError):
    """Another attempt has taken over; this one may not write any more."""

    code = "lease_lost"
    retryable = False


class OtherChain(TraceError):
    """The dataset holds one chain, and the node serves another."""

    code = "other_chain"
    retryable = False
