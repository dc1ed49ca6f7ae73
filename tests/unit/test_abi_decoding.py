"""Decoding against eth-abi: every type, whole logs and broken ones."""

from typing import Any

import pyarrow as pa
import pytest
from eth_abi import decode as oracle_decode
from eth_abi import encode
from eth_abi.exceptions import DecodingError
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_etl.dag.abi import AbiType, ArrayOf, Elementary, EventAbi, Parameter, TupleOf
from trace_etl.spark.abi.events import ERROR, Decoder, LogDecoder, hash_signature
from trace_etl.spark.abi.words import TEXTS, Reason

TRANSFER = EventAbi(
    "Transfer",
    (
        Parameter("from", Elementary("address", 160), indexed=True),
        Parameter("to", Elementary("address", 160), indexed=True),
        Parameter("value", Elementary("uint", 256)),
    ),
)
BITS = st.integers(1, 32).map(lambda n: 8 * n)
ELEMENTARY = st.one_of(
    st.builds(Elementary, st.sampled_from(["uint", "int", "fixed_bytes"]), BITS),
    st.sampled_from(
        [
            Elementary("address", 160),
            Elementary("bool", 8),
            Elementary("bytes"),
            Elementary("string"),
        ]
    ),
)


def _tuple(items: list[AbiType]) -> TupleOf:
    return TupleOf(tuple(f"f{n}" for n in range(len(items))), tuple(items))


TYPES: st.SearchStrategy[AbiType] = st.recursive(
    ELEMENTARY,
    lambda inner: st.one_of(
        st.builds(ArrayOf, inner, st.none() | st.integers(1, 3)),
        st.lists(inner, min_size=1, max_size=3).map(_tuple),
    ),
    max_leaves=6,
)


def _values(kind: AbiType) -> st.SearchStrategy[Any]:
    if isinstance(kind, ArrayOf):
        minimum, maximum = (0, 4) if kind.length is None else (kind.length, kind.length)
        return st.lists(_values(kind.item), min_size=minimum, max_size=maximum)
    if isinstance(kind, TupleOf):
        return st.tuples(*map(_values, kind.items))
    size = kind.bits // 8
    if kind.kind == "uint":
        return st.integers(0, 2**kind.bits - 1) | st.just(2**kind.bits - 1)
    if kind.kind == "int":
        return st.integers(-(2 ** (kind.bits - 1)), 2 ** (kind.bits - 1) - 1)
    if kind.kind in ("address", "fixed_bytes"):
        return st.binary(min_size=size, max_size=size)
    text = st.text(max_size=70)
    return {"bool": st.booleans(), "string": text}.get(kind.kind, st.binary(max_size=70))


def to_column_value(kind: AbiType, value: Any) -> Any:
    """Convert a value of eth-abi to the form of our columns."""
    if isinstance(kind, ArrayOf):
        return [to_column_value(kind.item, item) for item in value]
    if isinstance(kind, TupleOf):
        parts = zip(kind.names, kind.items, value, strict=True)
        return {name: to_column_value(item, part) for name, item, part in parts}
    if kind.kind == "address" and isinstance(value, str):
        return bytes.fromhex(value[2:])
    if kind.kind in ("uint", "int") and kind.bits > 120:
        word = value.to_bytes(32, "big", signed=kind.kind == "int")
        return {"binary": word, "string": str(value), "f64": float(value)}
    return value


def _columns(event: EventAbi, args: list[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for parameter, value in zip(event.parameters, args, strict=True):
        plain = to_column_value(parameter.type, value)
        if isinstance(plain, dict) and isinstance(parameter.type, Elementary):
            columns |= {
                f"{parameter.name}_{part}": part_value for part, part_value in plain.items()
            }
        else:
            columns[parameter.name] = plain
    return columns


def _logs(rows: list[tuple[list[bytes], bytes]]) -> Any:
    columns: dict[str, Any] = {"log_index": pa.array(range(len(rows)), pa.int64())}
    for n in range(4):
        topics = [row[0][n] if n < len(row[0]) else None for row in rows]
        columns[f"topic{n}"] = pa.array(topics, pa.binary())
    columns["data"] = pa.array([row[1] for row in rows], pa.binary())
    return pa.record_batch(columns)


def _decode(event: EventAbi, logs: Any, undecoded: str | None = "failed") -> dict[str, Any]:
    rest = [(field.name, field.type) for field in logs.schema]
    decoder = LogDecoder([Decoder("done", event)], rest[:1], rest, undecoded)
    return {name: batch.to_pylist() for name, batch in decoder(logs)}


@st.composite
def _cases(draw: st.DrawFn) -> tuple[EventAbi, list[list[Any]]]:
    kinds = draw(st.lists(TYPES, min_size=1, max_size=4))
    event = EventAbi("Made", tuple(Parameter(f"p{n}", kind) for n, kind in enumerate(kinds)))
    return event, draw(st.lists(st.tuples(*map(_values, kinds)).map(list), max_size=4))


def encode_arguments(event: EventAbi, args: list[Any]) -> bytes:
    return encode([p.type.canonical for p in event.parameters], args)


@settings(max_examples=120)
@given(_cases())
def test_data_of_every_type_is_decoded_as_by_eth_abi(
    case: tuple[EventAbi, list[list[Any]]],
) -> None:
    event, rows = case
    logs = _logs([([hash_signature(event)], encode_arguments(event, args)) for args in rows])
    decoded = _decode(event, logs)
    assert decoded["failed"] == []
    expected = [{"log_index": n, **_columns(event, args)} for n, args in enumerate(rows)]
    assert decoded["done"] == expected


@settings(max_examples=150)
@given(_cases(), st.data())
def test_broken_data_is_never_decoded_to_a_row_that_eth_abi_rejects(
    case: tuple[EventAbi, list[list[Any]]], data: st.DataObject
) -> None:
    event, rows = case
    broken = [break_data(encode_arguments(event, args), data) for args in rows]
    decoded = _decode(event, _logs([([hash_signature(event)], content) for content in broken]))
    decoded_rows = {row.pop("log_index"): row for row in decoded["done"]}
    why = {row["log_index"]: row[ERROR] for row in decoded["failed"]}
    assert decoded_rows.keys() | why.keys() == set(range(len(rows)))
    types = [p.type.canonical for p in event.parameters]
    for n, content in enumerate(broken):
        try:
            expected = _columns(event, list(oracle_decode(types, content)))
        except (DecodingError, UnicodeDecodeError, OverflowError):
            assert n in why
            continue
        # eth-abi accepts offsets into the head and repeated offsets, which no encoder writes.
        lenient = (TEXTS[Reason.OFFSET], TEXTS[Reason.TOO_MANY])
        assert decoded_rows.get(n) == expected or why[n].endswith(lenient), why.get(n)


def break_data(valid: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(valid)
    for _ in range(data.draw(st.integers(0, 2))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.integers(0, len(changed)) | st.just(len(changed)))])


@settings(max_examples=60)
@given(st.lists(ELEMENTARY, min_size=1, max_size=3), st.booleans(), st.data())
def test_indexed_values_are_decoded_from_topics(
    kinds: list[AbiType], anonymous: bool, data: st.DataObject
) -> None:
    named = tuple(Parameter(f"p{n}", kind, indexed=True) for n, kind in enumerate(kinds))
    event = EventAbi("Made", named, anonymous)
    args = [data.draw(_values(kind)) for kind in kinds]
    hashed = b"\x11" * 32
    topics = [] if anonymous else [hash_signature(event)]
    expected: dict[str, Any] = {"log_index": 0}
    for parameter, value in zip(named, args, strict=True):
        single = EventAbi("", (parameter,))
        is_hashed = parameter.type.is_dynamic
        topics.append(hashed if is_hashed else encode([parameter.type.canonical], [value]))
        expected |= {parameter.name: hashed} if is_hashed else _columns(single, [value])
    assert _decode(event, _logs([(topics, b"")])) == {"done": [expected], "failed": []}


def _address(n: int) -> bytes:
    return bytes(12) + n.to_bytes(20, "big")


ERC20 = ([hash_signature(TRANSFER), _address(1), _address(2)], (5).to_bytes(32, "big"))
ERC721 = ([hash_signature(TRANSFER), _address(1), _address(2), _address(9)], b"")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (ERC721, "4 topics, not 3"),
        ((ERC20[0], b"\x01"), "value: the data end before the value"),
        (
            ([ERC20[0][0], b"\x01" * 32, ERC20[0][2]], ERC20[1]),
            "from: the value does not fit its type: the padding is not zero",
        ),
    ],
    ids=["another_count_of_topics", "short_data", "dirty_address"],
)
def test_a_log_that_cannot_be_decoded_is_kept_with_the_reason(
    log: tuple[list[bytes], bytes], reason: str
) -> None:
    logs = _logs([ERC20, log, ERC20])
    decoded = _decode(TRANSFER, logs)
    assert [row["log_index"] for row in decoded["done"]] == [0, 2]
    [failed] = decoded["failed"]
    assert (failed["event"], failed[ERROR]) == ("Transfer", reason)
    assert failed["data"] == log[1] and failed["topic2"] == log[0][2]
    together = _decode(TRANSFER, logs, None)["done"]
    assert [row[ERROR] for row in together] == [None, reason, None]
    assert together[1]["value_string"] is None and together[2]["value_string"] == "5"


def test_a_log_is_assigned_to_the_first_event_that_decodes_it() -> None:
    nft = EventAbi(
        "Transfer", (*TRANSFER.parameters[:2], Parameter("id", Elementary("uint", 256), True))
    )
    both = [Decoder("coins", TRANSFER), Decoder("things", nft)]
    decoder = LogDecoder(both, [("log_index", pa.int64())], [], "failed")
    counts = {name: batch.num_rows for name, batch in decoder(_logs([ERC20, ERC721, ERC20]))}
    assert counts == {"coins": 2, "things": 1, "failed": 0}


def test_logs_of_other_events_are_skipped() -> None:
    decoded = _decode(TRANSFER, _logs([([b"\x00" * 32], b""), ([], b""), ERC20]))
    assert [row["log_index"] for row in decoded["done"]] == [2] and decoded["failed"] == []


def test_data_that_expands_without_limit_is_refused() -> None:
    """Every element of the outer array refers to the same inner array."""
    kind = ArrayOf(ArrayOf(Elementary("uint", 256)))
    event = EventAbi("Bomb", (Parameter("p", kind),))
    inner = encode(["uint256[]"], [[7] * 1000])[32:]
    word = lambda n: n.to_bytes(32, "big")  # noqa: E731
    data = word(32) + word(1000) + word(32_000) * 1000 + inner
    [failed] = _decode(event, _logs([([hash_signature(event)], data)]))["failed"]
    assert failed[ERROR] == f"p: {TEXTS[Reason.TOO_MANY]}"
