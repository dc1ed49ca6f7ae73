"""What Spark and Py4J raise, in our own words."""

from py4j.protocol import Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)

from trace_etl.pipeline.errors import BadSql, PipelineError, SparkLost, from_executor

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


def translated(error: Exception, *, is_alive: bool) -> PipelineError:
    """The error to report for a failed task."""
    if not is_alive or isinstance(error, ConnectionError | EOFError | Py4JNetworkError):
        return SparkLost("the Spark JVM ended while the task ran")
    text = str(error)
    raised = from_executor(text)
    if raised is not None:
        return raised
    summary = text.strip().partition("\n")[0][:_LONGEST]
    return BadSql(summary) if isinstance(error, _BY_DATA) else PipelineError(summary)
