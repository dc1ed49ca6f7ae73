"""Errors of the Query Service."""

from trace_etl.model.errors import Conflict, Fault, Invalid


class QueryLimitExceeded(Invalid):
    """A query needs more of a resource than a query may use."""

    def __init__(self, excess: str) -> None:
        advice = "read fewer blocks or columns, or make it a job of a DAG"
        super().__init__([Fault("sql", f"{excess}; {advice}")])


class QueryTimedOut(QueryLimitExceeded):
    """The query ran longer than the timeout."""

    code = "query_timed_out"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"ran longer than {seconds:g} s and was stopped")


class QueryTooLarge(QueryLimitExceeded):
    """The query needed more memory than a query may use."""

    code = "query_too_large"

    def __init__(self, memory: str) -> None:
        super().__init__(f"needed more than {memory} of memory")


class TablesTooLarge(QueryLimitExceeded):
    """The query read more bytes from Postgres data than a query may read."""

    code = "query_too_large"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"reads more than {max_bytes / 2**20:g} MiB of tables in Postgres data")


class NoDataYet(Conflict):
    """The dataset is published, but none of its partitions is committed."""

    code = "no_data_yet"
