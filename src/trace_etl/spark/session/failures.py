"""Translate the errors of Spark, Py4J and Spark Connect into OperatorError."""

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    PythonException,
    SparkRuntimeException,
    StreamingQueryException,
)

from trace_etl.model.errors import TraceError
from trace_etl.spark.errors import BadSql, OperatorError, SparkLost, parse_executor_error

_MAX_LENGTH = 500
# Errors caused by the query or its data: a retry would fail the same way.
_DATA_ERRORS = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
# A Connect server restarted or dropped the session, or this process closed it.
_SESSION_LOST = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")
_STATUSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def translate_error(error: Exception, *, is_alive: bool) -> TraceError:
    """Return the error to report for a failed task."""
    if not is_alive or is_spark_lost(error):
        return SparkLost(
            "Spark stopped or became unreachable while the task ran; see the log of the worker"
        )
    if _is_of_python_worker(error) and (raised := parse_executor_error(str(error))):
        return raised
    summary = first_line(error)[:_MAX_LENGTH]
    return BadSql(summary) if isinstance(error, _DATA_ERRORS) else OperatorError(summary)


def _is_of_python_worker(error: Exception) -> bool:
    """Whether the error comes from Trace's own code, not from a query or its data."""
    if isinstance(error, PythonException | StreamingQueryException):
        return True
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return (condition or "").startswith("PYTHON_")


def first_line(error: Exception) -> str:
    """The first line of an error, without the plan or stack trace after it."""
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, Py4JJavaError) and len(lines) > 1:  # the first line names a Java object
        return lines[1].removeprefix(": ")
    return lines[0]


def is_spark_lost(error: Exception) -> bool:
    """Whether the error means that Spark is no longer reachable."""
    if isinstance(error, ConnectionError | EOFError | Py4JNetworkError):
        return True
    if not isinstance(error, PySparkException):
        return False
    if (error.getCondition() or "").startswith(_SESSION_LOST):
        return True
    status = getattr(error, "getGrpcStatusCode", None)  # only errors of Spark Connect have it
    return status is not None and status().name in _STATUSES
