"""Answer JSON-RPC 2.0 calls, notifications and batches with one JSON body."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import orjson
import structlog

from trace_etl.devtools.devchain.chain.blocks import Unsealed
from trace_etl.devtools.devchain.rpc.errors import (
    InternalError,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    ResponseTooLarge,
    RpcError,
)
from trace_etl.devtools.devchain.rpc.methods import Method

MAX_BATCH = 1_000
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_CALLS_PER_TURN = 32
_NULL_ID = b"null"

log = structlog.get_logger()


class JsonRpc:
    """Answers request bodies with a table of methods.

    `wait_for(number)` returns when the block is sealed; a call that raised Unsealed is then repeated.
    """

    def __init__(
        self, methods: Mapping[str, Method], wait_for: Callable[[int], Awaitable[None]]
    ) -> None:
        self._methods = methods
        self._wait_for = wait_for

    async def answer(self, body: bytes) -> bytes:
        """Return the response to one HTTP body; empty if it has only notifications."""
        try:
            message: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            return _render_error(_NULL_ID, ParseError("parse error"))
        if isinstance(message, list):
            return await self._answer_batch(cast("list[Any]", message))
        return await self._answer_call(message)

    async def _answer_batch(self, calls: list[Any]) -> bytes:
        if not calls:
            return _render_error(_NULL_ID, InvalidRequest("empty batch"))
        if len(calls) > MAX_BATCH:
            return b"[%b]" % _render_error(_find_first_id(calls), InvalidRequest("batch too large"))
        answers: list[bytes] = []
        size = 0
        for position, call in enumerate(calls):
            if size > MAX_RESPONSE_BYTES:
                answer = _render_error(_read_id(call), ResponseTooLarge("response too large"))
            else:
                answer = await self._answer_call(call)
                size += len(answer)
            if answer:
                answers.append(answer)
            if position % _CALLS_PER_TURN == _CALLS_PER_TURN - 1:
                await asyncio.sleep(0)  # let other connections run
        return b"[%b]" % b",".join(answers) if answers else b""

    async def _answer_call(self, message: Any) -> bytes:
        call_id = _read_id(message)
        try:
            result = await self._run_method(message)
        except RpcError as error:
            return _render_error(call_id, error) if _needs_answer(message) else b""
        if not _needs_answer(message):
            return b""
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call_id, result)

    async def _run_method(self, message: Any) -> bytes:
        method = self._find_method(message)
        while True:
            try:
                return method(message.get("params"))
            except Unsealed as unsealed:
                await self._wait_for(unsealed.number)
            except RpcError:
                raise
            except Exception as error:
                log.exception("rpc_call_failed", method=message["method"])
                raise InternalError("internal error") from error

    def _find_method(self, message: Any) -> Method:
        if not _is_call(message):
            raise InvalidRequest("invalid request")
        name = cast("str", message["method"])
        method = self._methods.get(name)
        if method is None:
            raise MethodNotFound(f"the method {name} does not exist/is not available")
        return method


def _is_call(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    fields = cast("dict[str, Any]", message)
    has_valid_id = fields.get("id") is None or _is_id(fields["id"])
    return fields.get("jsonrpc") == "2.0" and isinstance(fields.get("method"), str) and has_valid_id


def _needs_answer(message: Any) -> bool:
    """Whether the message needs a response: only a valid call without an id does not."""
    return not _is_call(message) or "id" in message


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _read_id(message: Any) -> bytes:
    value = cast("dict[str, Any]", message).get("id") if isinstance(message, dict) else None
    return orjson.dumps(value) if _is_id(value) else _NULL_ID


def _find_first_id(calls: list[Any]) -> bytes:
    """Return the first id of a batch: a batch has no id, and geth uses that of the first call."""
    return next((call_id for call_id in map(_read_id, calls) if call_id != _NULL_ID), _NULL_ID)


def _render_error(call_id: bytes, error: RpcError) -> bytes:
    body = orjson.dumps({"code": error.code, "message": error.message})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (call_id, body)
