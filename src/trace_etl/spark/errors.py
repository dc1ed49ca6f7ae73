"""What can go wrong in the pipeline, and how it is recognised after a trip through Spark."""

import re

from trace_etl.model.errors import TraceError


class OperatorError(TraceError):
    """A task that cannot go on."""

    code = "operator_failed"
    retryable = True


class SparkNotStarted(OperatorError):
    """The JVM or the Spark application did not come up."""

    code = "spark_not_started"


class SparkLost(OperatorError):
    """The JVM died under a task. The next task gets a new one."""

    code = "spark_lost"


class RpcUnreachable(OperatorError):
    """No endpoint answered within the tries and the time we give them."""

    code = "rpc_unreachable"


class RpcRefused(OperatorError):
    """The node answered, with an error that trying again did not cure."""

    code = "rpc_refused"


class ChainMismatch(OperatorError):
    """What the node said contradicts itself, or a block we need is not there."""

    code = "chain_mismatch"


class FinalityBroken(OperatorError):
    """The node contradicts a block that it had called final. Somebody must look."""

    code = "finality_broken"
    retryable = False


class NotFinal(OperatorError):
    """The chain may still change the blocks in question: another time."""

    code = "not_final"


class StorageError(OperatorError):
    """An output's place does not take it."""

    code = "storage_unwritable"


class StorageFull(StorageError):
    code = "storage_full"


class StorageUnwritable(StorageError):
    code = "storage_unwritable"


class InputMissing(OperatorError):
    """A committed partition is not where its pointer says."""

    code = "input_missing"


class TaskCanceled(OperatorError):
    """Somebody asked us to stop."""

    code = "task_canceled"
    retryable = False


class BadSql(OperatorError):
    """Not one SELECT over the inputs, or one that Spark cannot analyse."""

    code = "bad_sql"
    retryable = False


class BadTask(OperatorError):
    """A payload this worker cannot serve: operator, config, output or filter."""

    code = "bad_task"
    retryable = False


# Executors' exceptions arrive as the text of a Python traceback, whose last line names the class.
_FROM_EXECUTOR = re.compile(rf"^{re.escape(__name__)}\.(\w+): (.*)$", re.MULTILINE)


def parse_executor_error(text: str) -> OperatorError | None:
    """The error an executor raised, if the text of a Spark failure holds one of ours."""
    found = _FROM_EXECUTOR.findall(text)
    if not found:
        return None
    name, detail = found[-1]
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, OperatorError):
        return kind(detail)
    return None
