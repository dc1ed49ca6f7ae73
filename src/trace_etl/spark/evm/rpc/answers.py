"""Parse JSON-RPC answers: into Arrow directly, or into Python values if that finds a fault."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pj

from trace_etl.proof import native
from trace_etl.spark.errors import ChainMismatch, OperatorError, RpcRefused, UnsupportedMethod

_METHOD_NOT_FOUND = -32601
# Some nodes report an unknown method with another code.
_OTHER_CODES = (-32600, -32000, -32004)
_NO_METHOD = re.compile(r"method.*(not (found|supported|available|allowed)|does not exist)", re.I)
# How nodes refuse a whole batch because of its length.
_BATCH_LIMIT = re.compile(r"batch|too (large|many|big|long)|size limit|invalid request", re.I)
_RATE_LIMIT = re.compile(r"per second|rate|too many requests", re.I)
_FINAL_CODES = (-32600, _METHOD_NOT_FOUND, -32602)  # an invalid request: a retry cannot help


@dataclass(frozen=True)
class RpcCall:
    """One JSON-RPC call."""

    method: str
    params: tuple[Any, ...]

    def __str__(self) -> str:
        subject = self.params[0] if self.params else None
        if isinstance(subject, str) and subject.startswith("0x") and 2 < len(subject) <= 18:
            return f"{self.method} of block {int(subject, 16)}"
        return f"{self.method} of {subject}" if isinstance(subject, str) else self.method


class RpcFailure(Exception):
    """One failed try: the error to raise in the end, and whether a retry or a split may help."""

    def __init__(
        self,
        kind: type[OperatorError],
        text: str,
        *,
        retryable: bool = True,
        splittable: bool = True,
        retry_after: float | None = None,
        is_batch_limit: bool = False,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.retryable = retryable
        self.splittable = splittable
        self.retry_after = retry_after
        self.is_batch_limit = is_batch_limit
        """Whether the node accepts only smaller batches."""
        self.is_refusal = not retryable and issubclass(kind, RpcRefused)
        """Whether this endpoint will never answer the call. Another one may."""


def encode_calls(calls: Sequence[RpcCall]) -> bytes:
    """Encode a request. A single call is not a batch, for nodes without batch support."""
    bodies = [
        {"jsonrpc": "2.0", "id": index, "method": call.method, "params": call.params}
        for index, call in enumerate(calls)
    ]
    return orjson.dumps(bodies if len(bodies) > 1 else bodies[0])


def read_columns(body: bytes, calls: Sequence[RpcCall], shape: Any, label: str) -> Any:
    """Parse the results into one Arrow array, in the order of the calls. Raises RpcFailure."""
    results = _parse_columns(body, len(calls), shape)
    if results is None:
        values = read_values(body, calls, label)  # raises if it finds the fault
        try:
            return pa.array(values, shape)  # only the ids are unusual, such as texts
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise RpcFailure(
                ChainMismatch, f"{calls[0]} at {label}: unexpected JSON structure", retryable=False
            ) from error
    return results


def read_values(body: bytes, calls: Sequence[RpcCall], label: str) -> list[Any]:
    """Parse the results into Python values, in the order of the calls. Raises RpcFailure."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RpcFailure(
            RpcRefused, f"{calls[0]} at {label}: truncated or malformed JSON"
        ) from error
    items = _list_items(content, calls, label)
    if len(items) == 1 and len(calls) > 1 and items[0].get("error"):
        _, text = _describe_error(items[0]["error"])
        is_limit = bool(_BATCH_LIMIT.search(text)) and not _RATE_LIMIT.search(text)
        raise RpcFailure(
            RpcRefused,
            f"a batch of {len(calls)} calls at {label}: {text}",
            is_batch_limit=is_limit,
        )
    return _sort_results(items, calls, label)


def _list_items(content: object, calls: Sequence[RpcCall], label: str) -> list[dict[str, Any]]:
    items = cast("list[object]", content if isinstance(content, list) else [content])
    if not all(isinstance(item, dict) for item in items):
        raise RpcFailure(RpcRefused, f"{calls[0]} at {label}: the answer is not a JSON-RPC object")
    return cast("list[dict[str, Any]]", items)


def _parse_columns(body: bytes, count: int, shape: Any) -> Any:
    """Parse a batch of results; None if an answer is missing, null, an error or malformed."""
    error = pa.struct([("code", pa.int64())])
    item = pa.struct([("id", pa.int64()), ("error", error), ("result", shape)])
    items = native.parse_answers(body, item)
    if items is None:
        items = _read_json(body, item)
    if items is None or len(items) != count:
        return None
    ids, results = items.field("id"), items.field("result")
    if ids.null_count or results.null_count:
        return None
    order = np.asarray(ids)
    if np.array_equal(order, np.arange(count)):
        return results
    if np.array_equal(np.sort(order), np.arange(count)):
        return results.take(pa.array(np.argsort(order)))
    return None


def _read_json(body: bytes, item: Any) -> Any:
    """Parse answers of this type; None if the JSON is malformed or has other types."""
    if not _is_utf8(body):
        return None  # the reader would take the bytes as they are
    schema = pa.schema([("items", pa.list_(item))])
    # Wrap the batch into one object, because the reader expects one object per line.
    opening, closing = (b'{"items":', b"}") if body[:1] == b"[" else (b'{"items":[', b"]}")
    text = b"".join((opening, body, closing))
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table.column("items").chunk(0).flatten()


def _is_utf8(body: bytes) -> bool:
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False


def _sort_results(items: list[dict[str, Any]], calls: Sequence[RpcCall], label: str) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    seen: set[int] = set()
    for item in items:
        index = item.get("id")
        if isinstance(index, str) and index.isdecimal():
            index = int(index)  # some nodes return ids as text
        if type(index) is not int or not 0 <= index < len(calls):
            shown = str(index)[:40]
            raise RpcFailure(RpcRefused, f"{calls[0]} at {label}: answer with unknown id {shown}")
        if index in seen:
            raise RpcFailure(RpcRefused, f"{calls[index]} at {label}: two answers with one id")
        seen.add(index)
        if item.get("error"):
            _raise_error(item["error"], calls[index], label)
        results[index] = item.get("result")
    for call, result in zip(calls, results, strict=True):
        if result is None:
            raise RpcFailure(ChainMismatch, f"{call} at {label}: not found", splittable=False)
    return results


def _raise_error(error: object, call: RpcCall, label: str) -> NoReturn:
    code, text = _describe_error(error)
    if code == _METHOD_NOT_FOUND or (code in _OTHER_CODES and _NO_METHOD.search(text)):
        raise RpcFailure(UnsupportedMethod, f"{call} at {label}: {text}", retryable=False)
    raise RpcFailure(RpcRefused, f"{call} at {label}: {text}", retryable=code not in _FINAL_CODES)


def _describe_error(error: object) -> tuple[int, str]:
    if not isinstance(error, dict):
        return 0, "malformed JSON-RPC error"
    fields = cast("dict[str, Any]", error)
    message = " ".join(str(fields.get("message", "")).split())[:200]
    code = fields.get("code")
    return (code if isinstance(code, int) else 0), f"error {code}: {message}"
