"""Errors of Spark tasks, and how an executor's error is recognised after Spark wrapped it."""

import re

from trace_etl.model.errors import TraceError
from trace_etl.objects import errors as storage_errors


class OperatorError(TraceError, code="operator_failed", retryable=True):
    """A task failed."""


class SparkNotStarted(OperatorError, code="spark_not_started"):
    """The JVM or the Spark application did not start."""


class SparkLost(OperatorError, code="spark_lost"):
    """The JVM died during a task. The next task gets a new one."""


class RpcUnreachable(OperatorError, code="rpc_unreachable"):
    """No endpoint answered within the allowed tries and timeout."""


class RpcRefused(OperatorError, code="rpc_refused"):
    """The node answered with an error, also after retries."""


class ChainMismatch(OperatorError, code="chain_mismatch"):
    """The node's answers contradict each other, or a needed block is missing."""


class FinalityBroken(OperatorError, code="finality_broken", retryable=False):
    """The node replaced a block that it had reported as final. An operator must investigate."""


class NotFinal(OperatorError, code="not_final"):
    """The chain may still change the requested blocks; the task is retried later."""


class InputMissing(OperatorError, code="input_missing"):
    """The files of a committed partition are missing."""


class TaskCanceled(OperatorError, code="task_canceled", retryable=False):
    """The attempt was asked to stop."""


class BadSql(OperatorError, code="bad_sql", retryable=False):
    """The text is not one SELECT over the inputs, or Spark cannot analyse it."""


class BadTask(OperatorError, code="bad_task", retryable=False):
    """The worker cannot run this payload: wrong operator, config, output or filter."""


# Exceptions of executors arrive as the text of a Python traceback, whose last line names the class.
_MODULES = {__name__: globals(), storage_errors.__name__: vars(storage_errors)}
_EXECUTOR_ERROR = re.compile(
    rf"^({'|'.join(map(re.escape, _MODULES))})\.(\w+): (.*)$", re.MULTILINE
)


def parse_executor_error(text: str) -> TraceError | None:
    """The error that an executor raised, if the text of a Spark failure contains one of ours."""
    found = _EXECUTOR_ERROR.findall(text)
    if not found:
        return None
    module, name, detail = found[-1]
    kind = _MODULES[module].get(name)
    if isinstance(kind, type) and issubclass(kind, TraceError):
        return kind(detail)
    return None
