"""What a query can be refused for, beside its SQL."""

from trace_etl.model.errors import Conflict, Fault, Invalid


class QueryTimedOut(Invalid):
    """It ran longer than a query may."""

    code = "query_timed_out"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            [
                Fault(
                    "sql",
                    f"ran longer than {seconds:g} s and was stopped; "
                    "read fewer blocks or columns, or make it a job of a DAG",
                )
            ]
        )


class QueryTooLarge(Invalid):
    """It needed more memory than a query may have."""

    code = "query_too_large"

    def __init__(self, memory: str) -> None:
        super().__init__(
            [
                Fault(
                    "sql",
                    f"needed more than {memory} of memory; "
                    "read fewer blocks or columns, or make it a job of a DAG",
                )
            ]
        )


class TablesTooLarge(Invalid):
    """It read more of tables in Postgres data than a query may."""

    code = "query_too_large"

    def __init__(self, most: int) -> None:
        super().__init__(
            [
                Fault(
                    "sql",
                    f"reads more than {most / 2**20:g} MiB of tables in Postgres data; "
                    "read fewer blocks or columns, or make it a job of a DAG",
                )
            ]
        )


class NoDataYet(Conflict):
    """The dataset is published, but nobody has committed a partition of it."""

    code = "no_data_yet"
