"""How an attempt failed, as it is reported to the Dispatcher."""

import traceback

from pydantic import BaseModel, ConfigDict

from trace_etl.api.task.checks import CheckResult
from trace_etl.http.clients.dispatcher_client import Refused
from trace_etl.model.errors import TraceError
from trace_etl.spark.errors import CheckFailed

UNEXPECTED = "operator_failed"


class Failure(BaseModel):
    """The failure of an operator. It can be sent from one process to another."""

    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    retryable: bool = True
    premature: bool = False
    unreachable: bool = False
    checks: list[CheckResult] = []
    output: str = ""
    """What people read in the output of the attempt."""


class FailedInHost(TraceError):
    """An operator failed in another process."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def describe_failure(error: BaseException) -> Failure:
    """Describe what an operator raised."""
    if isinstance(error, FailedInHost):
        return error.failure
    if isinstance(error, Refused):
        is_retryable = error.refusal == "dispatcher_failed"
        return Failure(code=error.refusal, message=error.detail, retryable=is_retryable)
    if isinstance(error, TraceError):
        return Failure(
            code=error.code,
            message=error.detail,
            retryable=error.retryable,
            premature=error.is_premature,
            unreachable=error.unreachable,
            checks=list(error.results) if isinstance(error, CheckFailed) else [],
            output=f"{error.code}: {error.detail}\n",
        )
    text = "".join(traceback.format_exception(error))
    return Failure(code=UNEXPECTED, message=f"{type(error).__name__}: {error}", output=text)
