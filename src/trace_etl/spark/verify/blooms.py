"""Compute the 2048-bit Bloom filters of logs."""

from binascii import unhexlify
from typing import Any

import numpy as np
import pyarrow as pa

from trace_etl.proof import native
from trace_etl.spark.evm.columns import list_lengths
from trace_etl.spark.verify.keccak import keccak

_Array = Any  # pyarrow ships no types
_BITS = 2048
_MAX_CACHED = 50_000
# The bits that a text sets. Tokens, pools and accounts recur in many blocks.
_cache: dict[str, bytes] = {}


def compute_blooms(logs: _Array, owners: Any, count: int) -> Any:
    """Compute `count` filters of 256 bytes; `owners` is the filter that each log belongs to."""
    topics = logs.field("topics")
    topic_counts = list_lengths(topics)
    if native.kernels:
        filters = native.kernels.compute_blooms(
            native.pass_column(logs.field("address")),
            native.pass_column(topics.flatten()),
            np.concatenate([[0], np.cumsum(topic_counts)], dtype=np.int64),
            np.ascontiguousarray(owners, np.int64),
            count,
        )
        if filters is not None:
            return np.frombuffer(filters, np.uint8).reshape(count, 256)
    texts = pa.concat_arrays([logs.field("address"), topics.flatten()])
    if texts.null_count:
        raise ValueError("a log without an address, or with a topic that is null")
    values = texts.dictionary_encode()
    positions = _find_bits(values.dictionary.to_pylist())
    codes = np.asarray(values.indices)
    all_owners = np.concatenate([owners, np.repeat(owners, topic_counts)])
    is_set = np.zeros((count, _BITS), np.bool_)
    for column in range(3):
        is_set[all_owners, positions[codes, column]] = True
    return np.packbits(is_set, axis=1)


def union_blooms(blooms: Any, counts: Any) -> Any:
    """Combine the filters of each block's receipts."""
    unions = np.zeros((len(counts), 256), np.uint8)
    filled = np.flatnonzero(counts)
    if len(filled):
        starts = (np.cumsum(counts) - counts)[filled]
        unions[filled] = np.bitwise_or.reduceat(blooms, starts, axis=0)
    return unions


def _find_bits(texts: list[str]) -> Any:
    """Return the three positions of each value, counted from the most significant bit."""
    if len(_cache) > _MAX_CACHED:
        _cache.clear()
    parts = [_cache.get(text) or _hash_value(text) for text in texts]
    numbers = np.frombuffer(b"".join(parts), ">u2").reshape(-1, 3)
    return _BITS - 1 - (numbers & (_BITS - 1)).astype(np.int64)


def _hash_value(text: str) -> bytes:
    part = _cache[text] = keccak(unhexlify(text[2:]))[:6]
    return part
