"""The AWS Lambda Runtime API, for one environment: hands out invocations and takes their results.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

import json
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, cast

from trace_etl.sandbox.broker.strict_http import (
    RequestRefused,
    StrictAnswer,
    StrictRequest,
    StrictServer,
)

PORT = 9001
_VERSION = "/2018-06-01/runtime"
_RESULT = re.compile(rf"{_VERSION}/invocation/([A-Za-z0-9-]+)/(response|error)")
_MAX_RESPONSE = 6 * 1024 * 1024  # as on AWS
_MAX_ERROR = 256 * 1024
_MAX_HELD = 2 * _MAX_ERROR
_MAX_TEXT = 2000


@dataclass(frozen=True)
class InvocationRequest:
    """One call of the function."""

    request_id: str
    event: bytes
    function: str
    deadline: float
    """When the function must have ended, in seconds since 1970."""


@dataclass(frozen=True)
class InvocationResult:
    """How a call ended. `error` is empty after success."""

    error: str = ""


class RuntimeApi:
    """Serves the runtime client of one environment, one invocation at a time."""

    def __init__(self, listener: socket.socket) -> None:
        self._changed = threading.Condition()
        self._waiting: InvocationRequest | None = None
        self._current: str | None = None
        self._result: InvocationResult | None = None
        self._is_closed = False
        self._idle_clients = 0
        self._server = StrictServer(
            listener, self._answer, max_body=_MAX_RESPONSE, max_held=_MAX_HELD
        )

    def invoke(self, request: InvocationRequest) -> InvocationResult:
        """Hand out an invocation and wait for its result, or until the environment has ended."""
        with self._changed:
            self._waiting, self._current, self._result = request, request.request_id, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._result is not None or self._is_closed)
            self._waiting = self._current = None
            return self._result or InvocationResult("the function ended before it answered")

    def is_idle(self) -> bool:
        """Return whether the runtime client waits for its next invocation."""
        with self._changed:
            return self._idle_clients > 0 and self._current is None

    def close(self) -> None:
        """End the invocation that runs, and answer nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.close()

    def _answer(self, request: StrictRequest) -> StrictAnswer:
        if request.method == "GET" and request.target == f"{_VERSION}/invocation/next":
            return self._hand_out()
        if request.method == "POST" and request.target == f"{_VERSION}/init/error":
            return self._take(
                None, InvocationResult(_describe_error(request.body.read_whole(_MAX_ERROR)))
            )
        if request.method == "POST" and (found := _RESULT.fullmatch(request.target)):
            error = (
                _describe_error(request.body.read_whole(_MAX_ERROR)) if found[2] == "error" else ""
            )
            return self._take(found[1], InvocationResult(error))
        raise RequestRefused(
            404, "not_found", f"the Runtime API has no call {request.method} {request.target[:100]}"
        )

    def _hand_out(self) -> StrictAnswer:
        with self._changed:
            self._idle_clients += 1
            self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
            self._idle_clients -= 1
            if self._waiting is None:
                raise RequestRefused(410, "closed", "the environment ends")
            request, self._waiting = self._waiting, None
        headers = {
            "content-type": "application/json",
            "lambda-runtime-aws-request-id": request.request_id,
            "lambda-runtime-deadline-ms": str(int(request.deadline * 1000)),
            "lambda-runtime-invoked-function-arn": f"arn:aws:lambda:local:000000000000:function:{request.function}",
            "lambda-runtime-trace-id": f"Root=1-{int(time.time()):08x}-{request.request_id[-12:]:0>24}",
        }
        return StrictAnswer(200, request.event, headers)

    def _take(self, request_id: str | None, result: InvocationResult) -> StrictAnswer:
        """Keep the first result of the current invocation. An error at the start has no id."""
        with self._changed:
            if self._current is None or request_id not in (None, self._current):
                raise RequestRefused(
                    400, "InvalidRequestID", "this invocation does not run; ask for the next one"
                )
            if self._result is None:
                self._result = result
                self._changed.notify_all()
        return StrictAnswer(202, b'{"status":"OK"}\n', {"content-type": "application/json"})


def _describe_error(body: bytes) -> str:
    """Return the message of an error document of a runtime client."""
    try:
        content: object = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        return body[:_MAX_TEXT].decode("utf-8", "replace") or "the function failed"
    fields = cast("dict[str, Any]", content)
    words = (str(fields.get(name) or "") for name in ("errorType", "errorMessage"))
    return ": ".join(word for word in words if word)[:_MAX_TEXT] or "the function failed"
