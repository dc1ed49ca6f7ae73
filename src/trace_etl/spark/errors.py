"""Errors of Spark tasks, and how an executor's error is recognised after Spark wrapped it."""

import re

from trace_etl.model.errors import TraceError


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


class StorageError(OperatorError):
    """The storage of an output rejects a write."""

    code = "storage_unwritable"


class StorageFull(StorageError):
    code = "storage_full"


class StorageUnwritable(StorageError):
    pass


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


# An executor's exception arrives as the text of a Python traceback; its last line names the class.
_EXECUTOR_ERROR = re.compile(rf"^{re.escape(__name__)}\.(\w+): (.*)$", re.MULTILINE)


def parse_executor_error(text: str) -> OperatorError | None:
    """Return the OperatorError that an executor raised, if a Spark error's text contains one."""
    found = _EXECUTOR_ERROR.findall(text)
    if not found:
        return None
    name, detail = found[-1]
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, OperatorError):
        return kind(detail)
    return None
