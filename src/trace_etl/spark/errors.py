"""Errors of Spark tasks, and how an executor's error is recognised after Spark wrapped it."""

import re

from trace_etl.model.errors import TraceError
from trace_etl.objects import errors as storage_errors


class OperatorError(TraceError):
    """A task failed."""

    code = "operator_failed"
    retryable = True


class SparkNotStarted(OperatorError):
    """The JVM or the Spark application did not start."""

    code = "spark_not_started"


class SparkLost(OperatorError):
    """The JVM died during a task. The next task gets a new one."""

    code = "spark_lost"


class RpcUnreachable(OperatorError):
    """No endpoint answered within the allowed tries and timeout."""

    code = "rpc_unreachable"


class RpcRefused(OperatorError):
    """The node answered with an error, also after retries."""

    code = "rpc_refused"


class ChainMismatch(OperatorError):
    """The node's answers contradict each other, or a needed block is missing."""

    code = "chain_mismatch"


class FinalityBroken(OperatorError):
    """The node replaced a block that it had reported as final. An operator must investigate."""

    code = "finality_broken"
    retryable = False


class NotFinal(OperatorError):
    """The chain may still change the requested blocks; the task is retried later."""

    code = "not_final"


class InputMissing(OperatorError):
    """The files of a committed partition are missing."""

    code = "input_missing"


class TaskCanceled(OperatorError):
    """The attempt was asked to stop."""

    code = "task_canceled"
    retryable = False


class BadSql(OperatorError):
    """The text is not one SELECT over the inputs, or Spark cannot analyse it."""

    code = "bad_sql"
    retryable = False


class BadTask(OperatorError):
    """The worker cannot run this payload: wrong operator, config, output or filter."""

    code = "bad_task"
    retryable = False


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
