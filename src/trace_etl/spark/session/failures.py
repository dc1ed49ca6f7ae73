"""What Spark, Py4J and Spark Connect raise, in our own words."""

from py4j.protocol import Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)

from trace_etl.spark.errors import BadSql, OperatorError, SparkLost, parse_executor_error

_LONGEST = 500
# The rows and the query disagree; the same task would fail the same way again.
_BY_DATA = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
# Of a server: it was started anew, or forgot the session, or we have closed it ourselves.
_GONE = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")
_STATUSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def translate_error(error: Exception, *, is_alive: bool) -> OperatorError:
    """The error to report for a failed task."""
    if not is_alive or is_spark_lost(error):
        return SparkLost("Spark ended, or went out of reach, while the task ran")
    text = str(error)
    raised = parse_executor_error(text)
    if raised is not None:
        return raised
    summary = first_line(error)[:_LONGEST]
    return BadSql(summary) if isinstance(error, _BY_DATA) else OperatorError(summary)


def first_line(error: Exception) -> str:
    """Without the plan or the stack that follows it."""
    return str(error).strip().partition("\n")[0]


def is_spark_lost(error: Exception) -> bool:
    """Whether it says that there is no Spark to talk to any more."""
    if isinstance(error, ConnectionError | EOFError | Py4JNetworkError):
        return True
    if not isinstance(error, PySparkException):
        return False
    if (error.getCondition() or "").startswith(_GONE):
        return True
    status = getattr(error, "getGrpcStatusCode", None)  # of Spark Connect's alone
    return status is not None and status().name in _STATUSES
