"""Batched JSON-RPC with bounded retries over a pool of endpoints."""

import http.client
import random
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, cast

import orjson

from trace_etl.pipeline.errors import ChainMismatch, PipelineError, RpcRefused, RpcUnreachable
from trace_etl.pipeline.evm.endpoint import Answer, Endpoint

_LONGEST_WAIT = 10.0
_METHOD_NOT_FOUND = -32601
_FINAL_CODES = (-32600, _METHOD_NOT_FOUND, -32602)  # our request is wrong; again is no better
_FINAL_STATUSES = (400, 401, 403, 404, 405)


@dataclass(frozen=True)
class Call:
    """One JSON-RPC call."""

    method: str
    params: tuple[Any, ...]

    def __str__(self) -> str:
        subject = self.params[0] if self.params else ""
        if isinstance(subject, str) and 2 < len(subject) <= 18:
            return f"{self.method} of block {int(subject, 16)}"
        return (
            f"{self.method} of {subject}" if isinstance(subject, str) and subject else self.method
        )


class MethodNotFound(Exception):
    """The node does not know a method."""


class _Trouble(Exception):
    """One failed try: what it will be called if it stays, and what may cure it."""

    def __init__(
        self,
        kind: type[PipelineError],
        text: str,
        *,
        again: bool = True,
        smaller: bool = True,
        wait: float | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.again = again
        self.smaller = smaller
        self.wait = wait


class Client:
    """Calls in batches; halves a batch that fails, waits, tries the next endpoint, gives up."""

    def __init__(
        self, urls: Sequence[str], *, timeout: float, tries: int, first_wait: float
    ) -> None:
        self._endpoints = [Endpoint(url, timeout=timeout) for url in urls]
        self._tries = tries
        self._first_wait = first_wait
        self._turn = 0
        self._stopping = Event()
        self.bytes_read = 0
        self.troubles = 0

    def batch(self, calls: Sequence[Call]) -> list[Any]:
        """The results, in the order of the calls.

        Raises RpcUnreachable, RpcRefused, ChainMismatch for a missing block, or MethodNotFound.
        """
        return self._batch(calls, self._tries) if calls else []

    @property
    def label(self) -> str:
        """The endpoint in use, in the form that may be shown."""
        return self._endpoints[self._turn % len(self._endpoints)].label

    def interrupt(self) -> None:
        """Make a call that is under way in another thread fail soon."""
        self._stopping.set()
        for endpoint in self._endpoints:
            endpoint.interrupt()

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    def _batch(self, calls: Sequence[Call], tries: int) -> list[Any]:
        endpoint = self._endpoints[self._turn % len(self._endpoints)]
        try:
            return self._once(endpoint, calls)
        except _Trouble as trouble:
            self.troubles += 1
            if tries <= 1 or not trouble.again or self._stopping.is_set():
                done = f" after {self._tries} tries" if trouble.again else ""
                raise trouble.kind(f"{trouble}{done}") from trouble
            self._turn += 1
            failed = self._tries - tries
            self._stopping.wait(_pause(self._first_wait * 2**failed, trouble.wait))
            smaller = trouble.smaller and len(calls) > 1
        if not smaller:
            return self._batch(calls, tries - 1)
        middle = len(calls) // 2
        return self._batch(calls[:middle], tries - 1) + self._batch(calls[middle:], tries - 1)

    def _once(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[Any]:
        where = f"{calls[0]} at {endpoint.label}"
        try:
            answer = endpoint.post(_encode(calls))
        except TimeoutError as error:
            raise _Trouble(RpcUnreachable, f"{where}: no answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise _Trouble(RpcUnreachable, f"{where}: {reason}", smaller=False) from error
        self.bytes_read += len(answer.body)
        return _results(_decode(answer, where, len(calls)), calls, endpoint.label)


def _encode(calls: Sequence[Call]) -> bytes:
    bodies = [
        {"jsonrpc": "2.0", "id": index, "method": call.method, "params": call.params}
        for index, call in enumerate(calls)
    ]
    return orjson.dumps(bodies if len(bodies) > 1 else bodies[0])


def _decode(answer: Answer, where: str, asked: int) -> list[dict[str, Any]]:
    if answer.status != 200:
        # Some nodes call a batch that is too long a bad request.
        again = answer.status not in _FINAL_STATUSES or (answer.status == 400 and asked > 1)
        raise _Trouble(
            RpcRefused, f"{where}: HTTP {answer.status}", again=again, wait=answer.retry_after
        )
    try:
        content = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise _Trouble(RpcRefused, f"{where}: truncated or malformed JSON") from error
    return cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])


def _results(items: list[dict[str, Any]], calls: Sequence[Call], label: str) -> list[Any]:
    if len(items) == 1 and len(calls) > 1 and items[0].get("error"):
        _, text = _error(items[0]["error"])
        raise _Trouble(RpcRefused, f"a batch of {len(calls)} calls at {label}: {text}")
    results: list[Any] = [None] * len(calls)
    for item in items:
        index = item.get("id")
        if not isinstance(index, int) or not 0 <= index < len(calls):
            raise _Trouble(RpcRefused, f"{calls[0]} at {label}: an answer to another question")
        if item.get("error"):
            _raise_item_error(item["error"], calls[index], label)
        results[index] = item.get("result")
    for call, result in zip(calls, results, strict=True):
        if result is None:
            raise _Trouble(ChainMismatch, f"{call} at {label}: not found", smaller=False)
    return results


def _raise_item_error(error: object, call: Call, label: str) -> None:
    code, text = _error(error)
    if code == _METHOD_NOT_FOUND:
        raise MethodNotFound(f"{call} at {label}: {text}")
    raise _Trouble(RpcRefused, f"{call} at {label}: {text}", again=code not in _FINAL_CODES)


def _error(error: object) -> tuple[int, str]:
    if not isinstance(error, dict):
        return 0, "an error of unknown shape"
    given = cast("dict[str, Any]", error)
    message = " ".join(str(given.get("message", "")).split())[:200]
    code = given.get("code")
    return (code if isinstance(code, int) else 0), f"error {code}: {message}"


def _pause(usual: float, asked: float | None) -> float:
    """With jitter; longer if the server asks for it, within reason."""
    wait = usual * random.uniform(0.75, 1.25)  # noqa: S311
    return min(max(wait, asked or 0.0), _LONGEST_WAIT)
