"""Run a Python function that is invoked many times: a small client of the Lambda Runtime API.

Argument: the directory of the bundle. The handler is in `_HANDLER`, as on AWS.
"""

import http.client
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `trace_etl.sdk`, after the bundle's modules
_RUNTIME = "/2018-06-01/runtime"


class LambdaContext:
    """The second argument of a handler, as on AWS, with the task of this invocation."""

    def __init__(self, event: Any, headers: http.client.HTTPMessage) -> None:
        self._event = event
        self.aws_request_id = headers["Lambda-Runtime-Aws-Request-Id"]
        self.invoked_function_arn = headers["Lambda-Runtime-Invoked-Function-Arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self._deadline = int(headers["Lambda-Runtime-Deadline-Ms"])

    @cached_property
    def task(self) -> Any:
        """The task of this invocation."""
        from trace_etl.sdk import Task

        return Task(self._event)

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the function is ended."""
        return max(0, self._deadline - int(time.time() * 1000))


class _RuntimeApi:
    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

    def next(self) -> tuple[bytes, http.client.HTTPMessage]:
        self._connection.request("GET", f"{_RUNTIME}/invocation/next")
        reply = self._connection.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise SystemExit(0)  # the environment ends
        return content, reply.headers

    def report(self, path: str, content: object) -> None:
        body = json.dumps(content, default=str).encode()
        self._connection.request("POST", f"{_RUNTIME}/{path}", body)
        self._connection.getresponse().read()


def main(bundle: str) -> None:
    """Import the handler, then call it for each invocation."""
    sys.path.insert(0, bundle)
    api = _RuntimeApi()
    module, _, name = os.environ["_HANDLER"].rpartition(".")
    try:
        handler = getattr(importlib.import_module(module.replace("/", ".")), name)
    except Exception as error:  # whatever the module raises is reported
        traceback.print_exc()
        api.report("init/error", _describe(error))
        raise SystemExit(1) from error
    while True:
        _serve(api, handler)


def _serve(api: _RuntimeApi, handler: Callable[[Any, LambdaContext], object]) -> None:
    content, headers = api.next()
    context_path = f"invocation/{headers['Lambda-Runtime-Aws-Request-Id']}"
    try:
        event = json.loads(content)
        result = handler(event, LambdaContext(event, headers))
    except Exception as error:  # whatever the handler raises is reported
        traceback.print_exc()
        api.report(f"{context_path}/error", _describe(error))
        return
    api.report(f"{context_path}/response", result)


def _describe(error: Exception) -> dict[str, object]:
    lines = traceback.format_exception(error)
    return {"errorMessage": str(error), "errorType": type(error).__name__, "stackTrace": lines}


if __name__ == "__main__":
    main(*sys.argv[1:])
