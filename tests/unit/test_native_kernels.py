"""The native package gives the results of Python, and leaves wrong input to it."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kernels import without_kernels
from trace_etl.proof import native
from trace_etl.proof.content_hash import hash_rows
from trace_etl.spark.evm.columns import parse_binary, parse_integers
from trace_etl.spark.evm.rpc.answers import RpcCall, RpcFailure, read_columns
from trace_etl.spark.verify.blooms import compute_blooms
from trace_etl.spark.verify.keccak import keccak_rows
from trace_etl.spark.verify.rlp_columns import (
    encode_data,
    encode_hashes,
    encode_lists,
    encode_quantities,
    encode_records,
)
from trace_etl.spark.verify.tries import compute_roots

pytestmark = pytest.mark.skipif(
    native.kernels is None, reason="trace-etl-native is not installed: make native"
)

digits = st.text("0123456789abcdefABCDEF", max_size=70)
# Some of them are not hexadecimal texts.
texts = st.one_of(digits.map("0x{}".format), st.none(), st.text("0xXg zé", max_size=6))
TOPICS = ["0x" + f"{n:064x}" for n in range(5)]
numbers = st.integers(0, 2**70).map(hex) | st.sampled_from(["0x", "0x00", "0x0123", "0xF" * 2])
values = st.lists(st.binary(max_size=80), min_size=1, max_size=20)


def column(items: list[Any], kind: Any) -> Any:
    """A slice of a longer column, so that offsets do not start at zero."""
    others = [b"\x01", None] if kind == pa.binary() else ["0xdead", None]
    if pa.types.is_struct(kind):
        others = [{"address": "0xdead", "topics": TOPICS[:2]}, None]
    return pa.array([*others, *items, others[0]], kind)[2:-1]


def same(compute: Callable[[], Any]) -> None:
    """Compare the results, or the errors, with and without the package."""

    def run() -> Any:
        try:
            result = compute()
        except (ValueError, OverflowError) as error:
            return type(error), str(error)
        if isinstance(result, pa.Array):
            result.validate(full=True)
            return result.type, result.to_pylist()
        return result

    ours = run()
    with without_kernels():
        assert ours == run()


@given(st.lists(texts, max_size=12), st.booleans())
def test_hexadecimal_texts_are_read_as_in_python(items: list[str | None], optional: bool) -> None:
    same(lambda: parse_binary(column(items, pa.string()), optional=optional))
    same(lambda: encode_data(column(items, pa.string()), optional=optional))


@given(st.lists(texts | numbers, max_size=12), st.booleans())
def test_quantities_are_read_as_in_python(items: list[str | None], optional: bool) -> None:
    same(lambda: parse_integers(column(items, pa.string()), optional=optional))
    same(lambda: encode_quantities(column(items, pa.string()), optional=optional))


@given(
    st.lists(st.binary(min_size=19, max_size=20).map(lambda b: f"0x{b.hex()}") | texts, max_size=6)
)
def test_addresses_are_encoded_as_in_python(items: list[str | None]) -> None:
    same(lambda: encode_hashes(column(items, pa.string()), length=20))


@given(values, st.lists(st.integers(0, 20), max_size=6))
def test_hashes_lists_and_records_are_encoded_as_in_python(
    items: list[bytes], cuts: list[int]
) -> None:
    rows = column(items, pa.binary())
    borders = np.array(sorted(min(cut, len(items)) for cut in [0, *cuts, 20]))
    same(lambda: keccak_rows(rows))
    same(lambda: encode_lists(rows, borders))
    same(lambda: encode_records([rows, pa.scalar(b"\x80", pa.binary()), rows], rows))


@given(st.lists(st.integers(0, 300), max_size=3), st.integers())
def test_roots_of_blocks_of_any_size_equal_those_of_python(counts: list[int], seed: int) -> None:
    random = Random(seed)
    sizes = [random.choice((1, 3, 30, 33, 200)) for _ in range(sum(counts))]
    rows = column([random.randbytes(size) for size in sizes], pa.binary())
    same(lambda: compute_roots(rows, np.array(counts, np.int64)))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.binary(min_size=20, max_size=20).map(lambda b: f"0x{b.hex()}") | texts,
            st.lists(st.sampled_from(TOPICS) | texts, max_size=4),
        ),
        max_size=8,
    )
)
def test_bloom_filters_equal_those_of_python(
    items: list[tuple[int, str | None, list[str | None]]],
) -> None:
    kind = pa.struct([("address", pa.string()), ("topics", pa.list_(pa.string()))])
    rows = [{"address": address, "topics": topics} for _, address, topics in items]
    logs = column(rows, kind)
    owners = np.array([owner for owner, _, _ in items], np.int64)
    same(lambda: compute_blooms(logs, owners, 4).tolist())


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.binary(max_size=40),
            st.none() | st.text(max_size=10),
            st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        ),
        max_size=8,
    )
)
def test_content_hashes_equal_those_of_python(rows: list[tuple[Any, ...]]) -> None:
    kinds = (pa.int64(), pa.binary(), pa.string(), pa.list_(pa.string()))
    arrays = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["a", "b", "c", "d"])
    same(lambda: hash_rows(batch.schema, [batch, batch.slice(1)]))


SHAPE = pa.struct(
    [
        ("hash", pa.string()),
        ("flag", pa.bool_()),
        ("number", pa.int64()),
        ("items", pa.list_(pa.struct([("name", pa.string()), ("keys", pa.list_(pa.string()))]))),
    ]
)
scalars = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(0, 9) | st.text(max_size=4)
names = st.none() | st.text("0xab", max_size=4)
keys = st.none() | st.lists(st.text("ab", max_size=2), max_size=2)
items_of_results = st.fixed_dictionaries(
    {}, optional={"name": names, "keys": keys, "more": scalars}
)
unknown = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)
results = st.fixed_dictionaries(
    {"hash": st.text("0xabcdef", max_size=9) | st.just('a"\\é\n')},
    optional={
        "flag": st.none() | st.booleans(),
        "number": st.none() | st.integers(-(2**40), 2**40) | st.just("1"),
        "items": st.none() | st.lists(items_of_results, max_size=3),
        "other": unknown,
    },
)
answers = st.fixed_dictionaries(
    {"id": st.integers(0, 2) | st.just("0"), "result": results | st.none()},
    optional={"jsonrpc": st.just("2.0"), "error": st.just({"code": -32000, "message": "no"})},
)


def read(body: bytes, count: int) -> Any:
    calls = [RpcCall("eth_getBlockByNumber", (hex(n), True)) for n in range(count)]
    try:
        return read_columns(body, calls, SHAPE, "node")
    except RpcFailure as failure:
        return failure.kind, str(failure), failure.retryable


@given(st.lists(answers, min_size=1, max_size=3), st.booleans())
def test_answers_of_nodes_are_read_as_in_python(items: list[Any], pretty: bool) -> None:
    body = orjson.dumps(items, option=orjson.OPT_INDENT_2 if pretty else None)
    same(lambda: read(body, len(items)))


@given(st.lists(results, min_size=1, max_size=2), st.data())
def test_damaged_answers_of_nodes_are_read_as_in_python(
    items: list[Any], data: st.DataObject
) -> None:
    body = bytearray(orjson.dumps([{"id": n, "result": r} for n, r in enumerate(items)]))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(body) - 1))
        change = data.draw(st.sampled_from(b'{}[]",:\\0e-.tn \x00\xff'))
        body[at : at + data.draw(st.integers(0, 2))] = bytes([change])
        if not body:
            break
    same(lambda: read(bytes(body), len(items)))


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":0,"result":{"hash":"0x1"}}',
        b' [ {"id":0,"result":{"hash":"0x1"}} ] ',
        b'[{"id":0,"result":{"hash":"0x1","hash":"0x2"}}]',
        b'[{"id":0,"result":{"hash":"\\u0061"}}]',
        b'[{"id":0,"result":{"hash":"0x1"}}]x',
        b'[{"id":00,"result":{"hash":"0x1"}}]',
        b'[{"id":0,"result":{"hash":"0x1","x":' + b"[" * 80 + b"]" * 80 + b"}}]",
        b'[{"id":0,"result":{"hash":"\xff"}}]',
        b"[]",
        b"",
    ],
)
def test_unusual_answers_of_nodes_are_read_as_in_python(body: bytes) -> None:
    same(lambda: read(body, 1))


def test_columns_with_wrong_borders_are_refused() -> None:
    """Buffers from elsewhere cannot make a kernel read outside of them."""
    offsets = np.array([0, 900], np.int32)
    with pytest.raises(ValueError, match="wrong offsets"):
        native.kernels.keccak_rows((offsets, b"abc", None, 0, 1, 4))
    with pytest.raises(ValueError, match="too few offsets"):
        native.kernels.keccak_rows((offsets, b"abc", None, 0, 5, 4))
