"""Batched JSON-RPC with bounded retries over a pool of endpoints."""

import http.client
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

import pyarrow as pa

from trace_etl.policy.retry import Backoff
from trace_etl.spark.errors import OperatorError, RpcRefused, RpcUnreachable
from trace_etl.spark.evm.rpc.answers import (
    RpcCall,
    RpcFailure,
    encode_calls,
    read_columns,
    read_values,
)
from trace_etl.spark.evm.rpc.endpoint import Endpoint, RpcResponse
from trace_etl.spark.evm.rpc.set_aside import BATCH_LIMITS, SET_ASIDE

_MAX_WAIT = 10.0
_ASKED_TWICE = 2
_Answer = TypeVar("_Answer")
_FINAL_STATUSES = (400, 401, 403, 404, 405)
_Read = Callable[[bytes, Sequence[RpcCall], str], Any]


@dataclass(frozen=True)
class RpcSource:
    """The endpoints to read from, with limits: blocks per batch and concurrent requests."""

    urls: tuple[str, ...]
    batch: int = 50
    concurrency: int = 3
    timeout: float = 30.0
    tries: int = 5
    initial_delay: float = 0.2
    spread: bool = True
    """Use all endpoints concurrently. False at the tip, where endpoints may differ."""
    compare_seconds: int = 10
    """Seconds between comparisons of the endpoints' heads at the tip."""


class RpcClient:
    """Sends calls in batches. After a failure it waits, splits the batch, and tries the next URL.

    Its methods raise RpcUnreachable, RpcRefused, UnsupportedMethod, or ChainMismatch for a
    missing block.
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
        self.answered: set[Endpoint] = set()
        """The endpoints that answered since the caller last cleared this set."""
        self._stopping = Event()
        self.bytes_read = 0
        self.failures = 0

    def call(self, call: RpcCall) -> Any:
        """Return the result of one call."""
        [[value]] = self._send_batch([call], read_values, self._tries)
        return value

    def columns(self, calls: Sequence[RpcCall], shape: Any, *, tries: int | None = None) -> Any:
        """Return the results of calls of one kind as an Arrow array, in the order of the calls."""
        if not calls:
            return pa.array([], shape)

        def read(body: bytes, calls: Sequence[RpcCall], label: str) -> Any:
            return read_columns(body, calls, shape, label)

        parts = self._send_batch(calls, read, min(tries or self._tries, self._tries))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    @property
    def url(self) -> str:
        """The current endpoint's URL, which may contain secrets."""
        return self._choose_endpoint().url

    @property
    def label(self) -> str:
        """The current endpoint's host and port, without secrets."""
        return self._choose_endpoint().label

    def use_next_endpoint(self) -> None:
        """Send the following calls to the next endpoint."""
        self._turn += 1

    def _choose_endpoint(self) -> Endpoint:
        """The endpoint whose turn it is; one that is set aside only if all others are too."""
        count = len(self._endpoints)
        turns = [self._endpoints[(self._turn + step) % count] for step in range(count)]
        return next((one for one in turns if not SET_ASIDE.includes(one.url)), turns[0])

    def interrupt(self) -> None:
        """Make a call in progress in another thread fail soon."""
        self._stopping.set()
        for endpoint in self._endpoints:
            endpoint.interrupt()

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    def _send_batch(
        self, calls: Sequence[RpcCall], read: _Read, tries: int, refusals: int = 0
    ) -> list[Any]:
        """Send the calls, in several parts if needed, and return the parsed parts in order.

        `refusals` counts the endpoints that refused for good.
        """
        endpoint = self._choose_endpoint()
        limit = BATCH_LIMITS.find(endpoint.url) or len(calls)
        if len(calls) > limit:
            return self._send_parts(calls, read, tries, limit)
        try:
            parsed = read(self._send(endpoint, calls), calls, endpoint.label)
            self.answered.add(endpoint)
            return [parsed]
        except RpcFailure as failure:
            self.failures += 1
            must_split = failure.retryable and failure.splittable and len(calls) > 1
            can_retry = failure.retryable and (must_split or tries > 1)
            ask_other = failure.is_refusal and refusals + 1 < len(self._endpoints)
            if not (can_retry or ask_other) or self._stopping.is_set():
                tried = f" (after {self._tries} tries)" if failure.retryable else ""
                raise failure.kind(f"{failure}{tried}; check the RPC endpoint") from failure
            self._turn += 1
            if must_split and failure.is_batch_limit:
                BATCH_LIMITS.lower(endpoint.url, len(calls) // 2)
            elif not ask_other:
                wait = self._backoff.seconds(self._tries - tries + 1)
                self._stopping.wait(min(max(wait, failure.retry_after or 0.0), _MAX_WAIT))
        if ask_other:
            return self._send_batch(calls, read, tries, refusals + 1)
        if not must_split:
            return self._send_batch(calls, read, tries - 1)
        # A smaller batch is another request, not another try: halving must not use up the tries.
        return self._send_parts(calls, read, tries, (len(calls) + 1) // 2)

    def _send_parts(
        self, calls: Sequence[RpcCall], read: _Read, tries: int, size: int
    ) -> list[Any]:
        parts = [calls[start : start + size] for start in range(0, len(calls), size)]
        return [result for part in parts for result in self._send_batch(part, read, tries)]

    def _send(self, endpoint: Endpoint, calls: Sequence[RpcCall]) -> bytes:
        where = f"{calls[0]} at {endpoint.label}"
        endpoint.wait_for_turn(len(calls), self._stopping)
        try:
            response = endpoint.post(encode_calls(calls))
        except TimeoutError as error:
            raise RpcFailure(RpcUnreachable, f"{where}: timed out") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise RpcFailure(RpcUnreachable, f"{where}: {reason}", splittable=False) from error
        self.bytes_read += len(response.body)
        _check_status(response, where, len(calls))
        return response.body


def ask_endpoints(source: RpcSource, ask: Callable[[RpcClient], _Answer]) -> list[_Answer]:
    """Ask every endpoint that is not set aside: one that lags or lies must not decide alone.

    Endpoints that do not answer are ignored if others do. Raises the error of the last one.
    """
    trusted = [url for url in source.urls if not SET_ASIDE.includes(url)]
    answers: list[_Answer] = []
    errors: list[OperatorError] = []
    for url in trusted or source.urls:
        client = RpcClient(
            (url,), timeout=source.timeout, tries=_ASKED_TWICE, initial_delay=source.initial_delay
        )
        try:
            answers.append(ask(client))
        except OperatorError as error:
            errors.append(error)
        finally:
            client.close()
    if not answers:
        raise errors[-1]
    return answers


def _check_status(response: RpcResponse, where: str, call_count: int) -> None:
    status = response.status
    if status != 200:
        # Some nodes answer a batch that is too long with 400.
        retryable = status not in _FINAL_STATUSES or (status == 400 and call_count > 1)
        raise RpcFailure(
            RpcRefused,
            f"{where}: HTTP {status}",
            retryable=retryable,
            retry_after=response.retry_after,
            is_batch_limit=status in (400, 413),
        )
