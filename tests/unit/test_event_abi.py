"""Event ABIs are read from human-readable signatures and from compiler JSON."""

import pytest

from trace_etl.dag.abi import BadAbi, find_event, parse_event
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.errors import Invalid
from trace_etl.spark.abi.events import hash_signature


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("Transfer(address,address,uint256)", "Transfer(address,address,uint256)"),
        (
            "event  Transfer ( address indexed from , address payable indexed to, uint value );",
            "Transfer(address,address,uint256)",
        ),
        ("Nothing()", "Nothing()"),
        (
            "A((uint8 a, string[] b)[2] indexed c, tuple(int d) e)",
            "A((uint8,string[])[2],(int256))",
        ),
        ("F(function f, byte b, bytes32[][3] c) anonymous", "F(bytes24,bytes1,bytes32[][3])"),
    ],
)
def test_a_signature_may_be_written_in_several_ways(text: str, canonical: str) -> None:
    assert parse_event(text).canonical == canonical


def test_topic0_is_the_hash_of_the_canonical_signature() -> None:
    event = parse_event("Transfer(address indexed from, address indexed to, uint value)")
    assert hash_signature(event).hex().startswith("ddf252ad1be2c89b")
    assert (event.topics, [p.name for p in event.parameters]) == (3, ["from", "to", "value"])


def test_a_json_entry_equals_its_signature() -> None:
    entry = {
        "type": "event",
        "name": "A",
        "anonymous": True,
        "inputs": [
            {
                "name": "c",
                "type": "tuple[2]",
                "indexed": True,
                "components": [{"name": "a", "type": "uint8"}, {"name": "b", "type": "string[]"}],
            },
            {"name": "", "type": "bool"},
        ],
    }
    assert parse_event(entry) == parse_event(
        "A((uint8 a, string[] b)[2] indexed c, bool) anonymous"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the event's name, not 'the end'"),
        ("Transfer", r"expected '\('"),
        ("T(uint7 a)", "unknown type 'uint7'; use 8 to 256 bits"),
        ("T(bytes33 a)", "bytes1 to bytes32"),
        ("T(adress a)", "unknown type 'adress'"),
        ("T(uint a, uint A)", "two parameters are named a"),
        ("T(uint[0] a)", "is an array without elements"),
        ("T(() a)", "a tuple has no components"),
        ("T((uint x, uint X) a)", "two components with the same name"),
        ("T(uint a b)", "at character 9: expected ',', not 'b\\)'"),
        ("T(uint a) sometimes", "expected the end"),
        ("T(uint indexed,uint indexed,uint indexed,uint indexed)", "at most 3"),
        ("T(uint[1000][1000][1000] a)", "more than"),
        ("T(" + "(" * 20 + "uint" + ")" * 20 + ")", "nested more than"),
    ],
)
def test_an_invalid_signature_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(BadAbi, match=message):
        parse_event(text)


def test_an_event_is_found_by_name_unless_the_name_is_ambiguous() -> None:
    entries = [
        {"type": "function", "name": "f"},
        *(
            {"type": "event", "name": "E", "inputs": [{"name": "a", "type": kind}]}
            for kind in ("uint256", "bool")
        ),
    ]
    assert find_event(entries, "E(bool)").canonical == "E(bool)"
    with pytest.raises(BadAbi, match="has 2 events E"):
        find_event(entries, "E")
    with pytest.raises(BadAbi, match=r"no event X; its events are E\(uint256\), E\(bool\)"):
        find_event(entries, "X")


DAG = """
name: d
jobs:
  - name: ask
    source: {{kind: manual}}
    outputs: [ranges]
  - name: get
    operator: cryo_ingest
    inputs: [{{from: {{job: ask}}}}]
    outputs: [logs]
  - name: decode
    operator: decode_logs
    inputs: [{{from: {{job: get}}}}]
    outputs: [{outputs}]
    config:
      events: {{{events}}}
"""


@pytest.mark.parametrize(
    ("outputs", "events", "message"),
    [
        ("a", 'a: "T(uint7 a)"', "unknown type 'uint7'"),
        ("a, b", 'a: "T(uint a)"', "outputs must be those of `events`"),
        ("a", 'a: "T(uint a) anonymous"', "list the contracts in `addresses`"),
        ("a", "a: T", "the ABI has no event T"),
    ],
)
def test_a_dag_with_an_invalid_event_is_refused_with_its_position(
    outputs: str, events: str, message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        parse_dag(DAG.format(outputs=outputs, events=events))
    [fault] = caught.value.faults
    assert message in fault.message and fault.line is not None and fault.line >= 15


def test_a_dag_with_a_decode_job_is_accepted() -> None:
    parse_dag(DAG.format(outputs="a, undecoded", events='a: "T(uint a)"'))
