"""Batched JSON-RPC with bounded retries over a pool of endpoints."""

import http.client
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import pyarrow as pa

from trace_etl.policy.retry import Backoff
from trace_etl.spark.errors import RpcRefused, RpcUnreachable
from trace_etl.spark.evm.answers import RpcCall, RpcFailure, encode, read_columns, read_values
from trace_etl.spark.evm.endpoint import Endpoint, RpcResponse

_MAX_WAIT = 10.0
_FINAL_STATUSES = (400, 401, 403, 404, 405)
_Read = Callable[[bytes, Sequence[RpcCall], str], Any]


class RpcClient:
    """Calls in batches; halves a batch that fails, waits, tries the next endpoint, gives up.

    Its methods raise RpcUnreachable, RpcRefused, ChainMismatch for a missing block, or
    MethodNotFound.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout: float,
        tries: int,
        initial_delay: float,
        first: int = 0,
    ) -> None:
        self._endpoints = [Endpoint(url, timeout=timeout) for url in urls]
        self._tries = tries
        self._backoff = Backoff.of_seconds(initial_delay, _MAX_WAIT, jitter=0.25)
        self._turn = first
        self._stopping = Event()
        self.bytes_read = 0
        self.troubles = 0

    def call(self, call: RpcCall) -> Any:
        """The result of one call."""
        [[value]] = self._batch([call], read_values, self._tries)
        return value

    def columns(self, calls: Sequence[RpcCall], shape: Any, *, tries: int | None = None) -> Any:
        """The results of calls of one kind, as an Arrow array in the order of the calls."""
        if not calls:
            return pa.array([], shape)

        def read(body: bytes, calls: Sequence[RpcCall], label: str) -> Any:
            return read_columns(body, calls, shape, label)

        parts = self._batch(calls, read, min(tries or self._tries, self._tries))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    @property
    def label(self) -> str:
        """The endpoint in use, in the form that may be shown."""
        return self._endpoints[self._turn % len(self._endpoints)].label

    def move_on(self) -> None:
        """Ask the next endpoint from now on."""
        self._turn += 1

    def interrupt(self) -> None:
        """Make a call that is under way in another thread fail soon."""
        self._stopping.set()
        for endpoint in self._endpoints:
            endpoint.interrupt()

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    def _batch(self, calls: Sequence[RpcCall], read: _Read, tries: int) -> list[Any]:
        """What `read` makes of each part that the calls had to be sent in."""
        endpoint = self._endpoints[self._turn % len(self._endpoints)]
        try:
            return [read(self._send(endpoint, calls), calls, endpoint.label)]
        except RpcFailure as trouble:
            self.troubles += 1
            if tries <= 1 or not trouble.again or self._stopping.is_set():
                done = f" after {self._tries} tries" if trouble.again else ""
                raise trouble.kind(f"{trouble}{done}") from trouble
            self._turn += 1
            wait = self._backoff.seconds(self._tries - tries + 1)
            self._stopping.wait(min(max(wait, trouble.wait or 0.0), _MAX_WAIT))
            smaller = trouble.smaller and len(calls) > 1
        if not smaller:
            return self._batch(calls, read, tries - 1)
        middle = len(calls) // 2
        halves = calls[:middle], calls[middle:]
        return [part for half in halves for part in self._batch(half, read, tries - 1)]

    def _send(self, endpoint: Endpoint, calls: Sequence[RpcCall]) -> bytes:
        where = f"{calls[0]} at {endpoint.label}"
        endpoint.wait_for_turn(len(calls), self._stopping)
        try:
            answer = endpoint.post(encode(calls))
        except TimeoutError as error:
            raise RpcFailure(RpcUnreachable, f"{where}: no answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise RpcFailure(RpcUnreachable, f"{where}: {reason}", smaller=False) from error
        self.bytes_read += len(answer.body)
        _check_status(answer, where, len(calls))
        return answer.body


def _check_status(answer: RpcResponse, where: str, asked: int) -> None:
    if answer.status != 200:
        # Some nodes call a batch that is too long a bad request.
        again = answer.status not in _FINAL_STATUSES or (answer.status == 400 and asked > 1)
        raise RpcFailure(
            RpcRefused, f"{where}: HTTP {answer.status}", again=again, wait=answer.retry_after
        )
