"""Encode transactions of types 0 to 4 and 0x7e as they are hashed. Types are read from the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.spark.evm.columns import parse_integers
from trace_etl.spark.verify.rlp_columns import (
    encode_data,
    encode_hashes,
    encode_lists,
    encode_quantities,
    encode_records,
)

_Array = Any  # pyarrow ships no types


def _encode_access_lists(transactions: _Array) -> _Array:
    lists = _read_lists(transactions, "accessList")
    entries = lists.flatten()
    keys = entries.field("storageKeys")
    key_lists = encode_lists(encode_hashes(keys.flatten(), length=32), _read_offsets(keys))
    addresses = encode_hashes(entries.field("address"), length=20)
    return encode_lists(encode_records([addresses, key_lists]), _read_offsets(lists))


def _encode_authorizations(transactions: _Array) -> _Array:
    lists = _read_lists(transactions, "authorizationList")
    items = lists.flatten()
    parity = pc.coalesce(items.field("yParity"), items.field("v"))
    fields = [
        encode_quantities(items.field("chainId")),
        encode_hashes(items.field("address"), length=20),
        encode_quantities(items.field("nonce")),
        encode_quantities(parity),
        encode_quantities(items.field("r")),
        encode_quantities(items.field("s")),
    ]
    return encode_lists(encode_records(fields), _read_offsets(lists))


def _encode_blob_hashes(transactions: _Array) -> _Array:
    lists = _read_lists(transactions, "blobVersionedHashes")
    return encode_lists(encode_hashes(lists.flatten(), length=32), _read_offsets(lists))


def _read_parity(rows: _Array) -> _Array:
    """The parity of a signature. Newer nodes also return it as `v`."""
    parity, v = rows.field("yParity"), rows.field("v")
    if pc.any(pc.not_equal(parity, v)).as_py():
        raise ValueError("yParity and v of a transaction differ")
    return pc.coalesce(parity, v)


def _encode_flag(rows: _Array) -> _Array:
    """Encode whether a deposit is a system transaction: empty or 1."""
    is_set = pc.fill_null(rows.field("isSystemTx"), False)
    return pc.if_else(is_set, pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x80", pa.binary()))


def _get_field(name: str) -> Callable[[_Array], _Array]:
    return lambda rows: rows.field(name)


# Numbers are encoded together: the cost is mostly per call, not per row.
_NUMBERS = (
    *("chainId", "nonce", "gasPrice", "gas", "value", "v", "r", "s"),
    *("maxPriorityFeePerGas", "maxFeePerGas", "maxFeePerBlobGas"),
)
_QUANTITIES: Mapping[str, Callable[[_Array], _Array]] = {
    **{name: _get_field(name) for name in _NUMBERS},
    "yParity": _read_parity,
    "mint": lambda rows: pc.fill_null(rows.field("mint"), "0x0"),
}
_OTHERS: Mapping[str, Callable[[_Array], _Array]] = {
    "to": lambda rows: encode_data(rows.field("to"), optional=True),
    "input": lambda rows: encode_data(rows.field("input")),
    "accessList": _encode_access_lists,
    "authorizationList": _encode_authorizations,
    "blobVersionedHashes": _encode_blob_hashes,
    "sourceHash": lambda rows: encode_hashes(rows.field("sourceHash"), length=32),
    "from": lambda rows: encode_hashes(rows.field("from"), length=20),
    "isSystemTx": _encode_flag,
}
_FIRST_PROTECTED = 35
_FEES = ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas")
_CALLED = ("to", "value", "input")
_SIGNED = ("yParity", "r", "s")
_BLOBS = ("maxFeePerBlobGas", "blobVersionedHashes")
_LAYOUTS: Mapping[int, tuple[str, ...]] = {
    0: ("nonce", "gasPrice", "gas", *_CALLED, "v", "r", "s"),
    1: ("chainId", "nonce", "gasPrice", "gas", *_CALLED, "accessList", *_SIGNED),
    2: (*_FEES, *_CALLED, "accessList", *_SIGNED),
    3: (*_FEES, *_CALLED, "accessList", *_BLOBS, *_SIGNED),
    4: (*_FEES, *_CALLED, "accessList", "authorizationList", *_SIGNED),
    0x7E: ("sourceHash", "from", "to", "mint", "value", "gas", "isSystemTx", "input"),
}
KNOWN_TYPES = tuple(_LAYOUTS)


def read_types(rows: _Array) -> Any:
    """The types of transactions or receipts; a missing one counts as 0, which the root proves."""
    texts = pc.fill_null(rows.field("type"), "0x0").dictionary_encode()
    kinds = [int(text, 16) for text in texts.dictionary.to_pylist()]
    return np.array(kinds, np.int64)[np.asarray(texts.indices)]


def encode_transactions(transactions: _Array) -> _Array:
    """Encode signed transactions. Raises ValueError that names the type or the missing field."""
    return _encode_groups(transactions, read_types(transactions), _encode_signed)


def encode_unsigned(transactions: _Array) -> _Array:
    """Encode what the signatures of transactions sign."""
    types = read_types(transactions)
    # The signature of a legacy transaction covers the chain id since EIP-155.
    is_protected = (types == 0) & (_parse_small(transactions.field("v")) >= _FIRST_PROTECTED)
    return _encode_groups(transactions, np.where(is_protected, -1, types), _encode_message)


def read_parities(transactions: _Array) -> list[int]:
    """The parities of signatures, 0 or 1. `v` is the parity plus 27, 35 or more, or the parity."""
    values = _parse_small(pc.coalesce(transactions.field("yParity"), transactions.field("v")))
    return [(v if v < 27 else v - 27) % 2 for v in values.tolist()]


@dataclass(frozen=True)
class _Rows:
    """Some transactions. Only the fields that are used are gathered."""

    transactions: _Array
    places: _Array | None
    """Positions of the rows; None for all."""

    def field(self, name: str) -> _Array:
        column = self.transactions.field(name)
        return column if self.places is None else column.take(self.places)


def _encode_groups(
    transactions: _Array, groups: Any, encode: Callable[[_Rows, int], _Array]
) -> _Array:
    """Encode each group of transactions, and return them in their order."""
    kinds = np.unique(groups)
    if len(kinds) == 0:
        return pa.array([], pa.binary())
    if len(kinds) == 1:
        return encode(_Rows(transactions, None), int(kinds[0]))
    places = [np.flatnonzero(groups == kind) for kind in kinds]
    parts = [
        encode(_Rows(transactions, pa.array(rows)), int(kind))
        for kind, rows in zip(kinds, places, strict=True)
    ]
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


def _encode_signed(rows: _Rows, kind: int) -> _Array:
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise ValueError(
            f"transaction {rows.field('hash')[0]} has type {kind:#x}, which the rules do not know; "
            "declare an exception for the chain"
        )
    return encode_records(_encode_fields(rows, layout), _make_prefix(kind))


def _encode_message(rows: _Rows, kind: int) -> _Array:
    columns = _encode_fields(rows, _LAYOUTS[max(kind, 0)][:-3])
    if kind < 0:
        chain_ids = (_parse_small(rows.field("v")) - _FIRST_PROTECTED) // 2
        texts = pa.array([hex(number) for number in chain_ids.tolist()], pa.string())
        columns += [encode_quantities(texts), pa.scalar(b"\x80\x80", pa.binary())]
    return encode_records(columns, _make_prefix(max(kind, 0)))


def _make_prefix(kind: int) -> _Array:
    """The byte before a typed transaction; legacy ones have none."""
    return pa.scalar(bytes([kind]) if kind else b"", pa.binary())


def _parse_small(texts: _Array) -> Any:
    numbers: Any = np.asarray(parse_integers(texts))
    return numbers


def _encode_fields(rows: _Rows, layout: Sequence[str]) -> list[_Array]:
    numbers = [name for name in layout if name in _QUANTITIES]
    texts = [_require(rows, name, _QUANTITIES[name](rows)) for name in numbers]
    encoded = encode_quantities(pa.concat_arrays(texts))
    count = len(texts[0])
    columns = {name: encoded.slice(n * count, count) for n, name in enumerate(numbers)}
    for name in layout:
        if name not in columns:
            columns[name] = _encode_field(rows, name)
    return [columns[name] for name in layout]


def _encode_field(rows: _Rows, name: str) -> _Array:
    try:
        return _OTHERS[name](rows)
    except ValueError as error:
        raise ValueError(f"{name} of transactions: {error}") from error


def _require(rows: _Rows, name: str, texts: _Array) -> _Array:
    if texts.null_count:
        row = int(np.flatnonzero(np.asarray(texts.is_null()))[0])
        raise ValueError(f"{name} of transaction {rows.field('hash')[row]}: a value is missing")
    return texts


def _read_lists(rows: Any, name: str) -> _Array:
    return _require(rows, name, rows.field(name))


def _read_offsets(lists: _Array) -> Any:
    """Offsets of the lists in their flattened items."""
    offsets = np.asarray(lists.offsets)
    return offsets - offsets[0]
