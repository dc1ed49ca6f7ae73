"""Errors of the Query Service."""

from trace_etl.model.errors import Conflict, Fault, Invalid, TooManyRequests


class QueryLimitExceeded(Invalid):
    """A query needs more of a resource than a query may use."""

    @classmethod
    def of(cls, excess: str) -> "QueryLimitExceeded":
        advice = "read fewer blocks or columns, or make it a job of a DAG"
        return cls([Fault("sql", f"{excess}; {advice}")])


class QueryTimedOut(QueryLimitExceeded):
    """The query took more time, or more processor time, than a query may take."""

    code = "query_timed_out"


class QueryTooLarge(QueryLimitExceeded):
    """The query needed more memory, or read more of Postgres data, than a query may."""

    code = "query_too_large"


class QueryCrashed(QueryLimitExceeded):
    """The process that ran the query ended."""

    code = "query_crashed"


class TooManyQueries(TooManyRequests):
    """One user runs too many queries at once."""

    code = "too_many_queries"


class NoDataYet(Conflict):
    """The dataset is published, but none of its partitions is committed."""

    code = "no_data_yet"
