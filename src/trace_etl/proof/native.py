"""The optional package `trace-etl-native`: faster kernels over Arrow columns, with the same results.

A kernel returns None for input that is not plain and valid. Callers then run the Python twin, which
finds the fault, so errors are the same with and without the package.
"""

from functools import lru_cache
from importlib import import_module
from typing import Any

import pyarrow as pa

_Array = Any  # pyarrow ships no types
_INTERFACE = 2  # the version of the interface in `native/src/lib.rs`


def _load() -> Any:
    try:
        module: Any = import_module("trace_etl_native")
    except ImportError:
        return None
    return module if getattr(module, "INTERFACE", 1) == _INTERFACE else None


kernels: Any = _load()
"""The module with the kernels; None if it is not installed, or was built for another release."""


def pass_column(values: _Array) -> tuple[Any, ...]:
    """Return a column of texts or bytes as kernels take it."""
    validity, offsets, data = values.buffers()
    width = 8 if pa.types.is_large_binary(values.type) else 4
    return offsets, data, validity if values.null_count else None, values.offset, len(values), width


def make_binary(count: int, pair: tuple[bytes, bytes], validity: Any = None) -> _Array:
    """Return the offsets and bytes that a kernel returned as a binary column."""
    buffers = [validity, *map(pa.py_buffer, pair)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def parse_answers(body: bytes, item: Any) -> _Array | None:
    """Parse JSON-RPC answers of this Arrow type; None without the kernel, or if the JSON is unusual."""
    column = kernels.parse_answers(body, _make_shape(item)) if kernels else None
    return None if column is None else _make_array(column, item)


@lru_cache(64)
def _make_shape(kind: Any) -> Any:
    return kernels.Shape(_describe_type(kind))


def _describe_type(kind: Any) -> Any:
    if pa.types.is_list(kind):
        return "list", _describe_type(kind.value_type)
    if pa.types.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return "record", [(field.name, _describe_type(field.type)) for field in fields]
    return {"string": "text", "int64": "integer", "bool": "flag"}[str(kind)]


def _make_array(column: tuple[int, bytes | None, Any], kind: Any) -> _Array:
    count, validity, content = column
    bits = None if validity is None else pa.py_buffer(validity)
    if pa.types.is_struct(kind):
        fields = [kind.field(n).type for n in range(kind.num_fields)]
        children = [_make_array(*pair) for pair in zip(content, fields, strict=True)]
        return pa.Array.from_buffers(kind, count, [bits], children=children)
    if pa.types.is_list(kind):
        offsets, items = content
        children = [_make_array(items, kind.value_type)]
        return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(offsets)], children=children)
    parts = content if pa.types.is_string(kind) else (content,)
    return pa.Array.from_buffers(kind, count, [bits, *map(pa.py_buffer, parts)])
