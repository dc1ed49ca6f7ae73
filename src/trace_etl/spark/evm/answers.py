"""JSON-RPC answers: columns straight from the bytes, and the long way round when one is odd."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pj

from trace_etl.spark.errors import ChainMismatch, OperatorError, RpcRefused

_METHOD_NOT_FOUND = -32601
# Some nodes say so with another code.
_OTHER_CODES = (-32600, -32000, -32004)
_NO_METHOD = re.compile(r"method.*(not (found|supported|available|allowed)|does not exist)", re.I)
_FINAL_CODES = (-32600, _METHOD_NOT_FOUND, -32602)  # our request is wrong; again is no better


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


class UnsupportedMethod(Exception):
    """The node does not know a method."""


class RpcFailure(Exception):
    """One failed try: what it will be called if it stays, and what may cure it."""

    def __init__(
        self,
        kind: type[OperatorError],
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


def encode(calls: Sequence[RpcCall]) -> bytes:
    """A request; a single call goes out bare, for nodes that know no batches."""
    bodies = [
        {"jsonrpc": "2.0", "id": index, "method": call.method, "params": call.params}
        for index, call in enumerate(calls)
    ]
    return orjson.dumps(bodies if len(bodies) > 1 else bodies[0])


def read_columns(body: bytes, calls: Sequence[RpcCall], shape: Any, label: str) -> Any:
    """The results as one Arrow array, in the order of the calls. Raises Trouble."""
    results = _columns(body, len(calls), shape)
    if results is None:
        read_values(body, calls, label)  # knows what is wrong with it
        raise RpcFailure(
            ChainMismatch, f"{calls[0]} at {label}: an answer of unknown shape", again=False
        )
    return results


def read_values(body: bytes, calls: Sequence[RpcCall], label: str) -> list[Any]:
    """The results as Python values, in the order of the calls. Raises Trouble."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RpcFailure(
            RpcRefused, f"{calls[0]} at {label}: truncated or malformed JSON"
        ) from error
    items = cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])
    if len(items) == 1 and len(calls) > 1 and items[0].get("error"):
        _, text = _error(items[0]["error"])
        raise RpcFailure(RpcRefused, f"a batch of {len(calls)} calls at {label}: {text}")
    return _in_order(items, calls, label)


def _columns(body: bytes, count: int, shape: Any) -> Any:
    """The results of a batch without a fault; None if there is any."""
    error = pa.struct([("code", pa.int64())])
    item = pa.struct([("id", pa.int64()), ("error", error), ("result", shape)])
    schema = pa.schema([("items", pa.list_(item))])
    # One object of one list, so that the reader, which wants lines, takes a batch.
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
    items = table.column("items").chunk(0).flatten()
    ids, results = items.field("id"), items.field("result")
    if len(items) != count or ids.null_count or results.null_count:
        return None
    order = np.asarray(ids)
    if np.array_equal(order, np.arange(count)):
        return results
    if np.array_equal(np.sort(order), np.arange(count)):
        return results.take(pa.array(np.argsort(order)))
    return None


def _in_order(items: list[dict[str, Any]], calls: Sequence[RpcCall], label: str) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    for item in items:
        index = item.get("id")
        if not isinstance(index, int) or not 0 <= index < len(calls):
            raise RpcFailure(RpcRefused, f"{calls[0]} at {label}: an answer to another question")
        if item.get("error"):
            _raise_error(item["error"], calls[index], label)
        results[index] = item.get("result")
    for call, result in zip(calls, results, strict=True):
        if result is None:
            raise RpcFailure(ChainMismatch, f"{call} at {label}: not found", smaller=False)
    return results


def _raise_error(error: object, call: RpcCall, label: str) -> NoReturn:
    code, text = _error(error)
    if code == _METHOD_NOT_FOUND or (code in _OTHER_CODES and _NO_METHOD.search(text)):
        raise UnsupportedMethod(f"{call} at {label}: {text}")
    raise RpcFailure(RpcRefused, f"{call} at {label}: {text}", again=code not in _FINAL_CODES)


def _error(error: object) -> tuple[int, str]:
    if not isinstance(error, dict):
        return 0, "an error of unknown shape"
    given = cast("dict[str, Any]", error)
    message = " ".join(str(given.get("message", "")).split())[:200]
    code = given.get("code")
    return (code if isinstance(code, int) else 0), f"error {code}: {message}"
