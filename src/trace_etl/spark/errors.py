"""Errors of Spark tasks, and how an executor reports them to the driver."""

import inspect
import json
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from trace_etl.api.task.checks import CheckResult
from trace_etl.model.errors import TraceError
from trace_etl.objects import errors as storage_errors


class OperatorError(TraceError, code="operator_failed", retryable=True):
    """A task failed."""


class SparkNotStarted(OperatorError, code="spark_not_started"):
    """The JVM or the Spark application did not start."""


class SparkLost(OperatorError, code="spark_lost"):
    """The JVM died during a task. The next task gets a new one."""


class RpcUnreachable(OperatorError, code="rpc_unreachable", unreachable=True):
    """No endpoint answered within the allowed tries and timeout."""


class RpcRefused(OperatorError, code="rpc_refused"):
    """The node answered with an error, also after retries."""


class UnsupportedMethod(RpcRefused):
    """No endpoint supports a method."""


class ChainMismatch(OperatorError, code="chain_mismatch"):
    """The node's answers contradict each other, or a needed block is missing."""


class DifferentChains(OperatorError, code="different_chains", retryable=False):
    """The endpoints of one pool serve different chains. A person must correct the pool."""


_MAX_SHOWN = 1024


def shorten(text: str) -> str:
    """Return what may be shown of a text that a node chose: it can have any length."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"


@dataclass(frozen=True)
class Evidence:
    """Why a block is not valid: the field, the value it must have, and the value received."""

    block: int
    block_hash: str
    field: str
    expected: str
    received: str

    def __str__(self) -> str:
        return (
            f"block {self.block} ({self.block_hash}), {self.field}: expected {self.expected}, "
            f"received {self.received}"
        )


class VerificationFailed(ChainMismatch):
    """What a node returned contradicts the header of its block. The node is wrong."""

    evidence: Evidence | None = None

    @classmethod
    def of(cls, evidence: Evidence) -> "VerificationFailed":
        error = cls(str(evidence))
        error.evidence = evidence
        return error


class FinalityBroken(OperatorError, code="finality_broken", retryable=False):
    """The node replaced a block that it had reported as final. An operator must investigate."""


class NotFinal(OperatorError, code="not_final"):
    """The chain may still change the requested blocks; the task waits and is tried again later."""

    is_premature = True


class InputMissing(OperatorError, code="input_missing"):
    """The files of a committed partition are missing."""


class NothingCommitted(InputMissing):
    """An input has no committed partition yet."""


class TaskCanceled(OperatorError, code="task_canceled", retryable=False):
    """The attempt was asked to stop."""


class BadSql(OperatorError, code="bad_sql", retryable=False):
    """The text is not one SELECT over the inputs, or Spark cannot analyse it."""


class BadColumn(OperatorError, code="bad_column", retryable=False):
    """A column of an output has a name that cannot be stored."""


class BadTask(OperatorError, code="bad_task", retryable=False):
    """The worker cannot run this payload: wrong operator, config, output or filter."""


class CheckFailed(OperatorError, code="check_failed", retryable=False):
    """A data check of an output failed, so nothing is committed."""

    results: tuple[CheckResult, ...] = ()

    @classmethod
    def of(cls, detail: str, results: Iterable[CheckResult]) -> "CheckFailed":
        error = cls(detail)
        error.results = tuple(results)
        return error


class ExecutorFailure(Exception):
    """Carries an error to the driver as one line of JSON, because Spark passes on only text."""


# The errors that an executor may report. Everything else becomes OperatorError.
_MODULES = {__name__: globals(), storage_errors.__name__: vars(storage_errors)}
_FAILURE = re.compile(rf"^{re.escape(__name__)}\.ExecutorFailure: (\{{.*\}})$", re.MULTILINE)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def report_errors(work: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function of a Python worker report every error as ExecutorFailure."""

    @wraps(work)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        with _report_errors():
            return work(*args, **kwargs)

    @wraps(work)
    def run_generator(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        with _report_errors():
            yield from cast("Any", work(*args, **kwargs))

    return run_generator if inspect.isgeneratorfunction(work) else run


@contextmanager
def _report_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:  # any error of the work is reported
        raise ExecutorFailure(_describe(error)) from error


def _describe(error: Exception) -> str:
    known = error if isinstance(error, TraceError) else None
    if known is None or type(known).__module__ not in _MODULES:
        known = OperatorError(known.detail if known else f"{type(error).__name__}: {error}")
    kind = type(known)
    return json.dumps({"module": kind.__module__, "name": kind.__name__, "detail": known.detail})


def parse_executor_error(text: str) -> TraceError | None:
    """The error that a Python worker reported, from the text of a Spark failure.

    Only for failures of Python workers. The last line counts: an earlier one may be part of the
    message of the error that caused it.
    """
    failures = _FAILURE.findall(text)
    if not failures:
        return None
    reported = json.loads(failures[-1])
    kind = _MODULES[reported["module"]][reported["name"]]
    return kind(reported["detail"])
