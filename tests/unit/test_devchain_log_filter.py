"""Which logs match a filter object of eth_getLogs."""

from typing import Any

import pytest

from trace_etl.devtools.devchain.chain.blocks import LogJson
from trace_etl.devtools.devchain.rpc import log_filter
from trace_etl.devtools.devchain.rpc.errors import InvalidParams

A, B, C = ("0x" + digit * 64 for digit in "abc")
TOKEN, OTHER = "0x" + "1" * 40, "0x" + "2" * 40


def _log(address: str, *topics: str) -> LogJson:
    return LogJson(address, topics, b"{}")


@pytest.mark.parametrize(
    ("topics", "matches"),
    [
        (None, True),
        ([], True),
        ([A], True),
        ([B], False),
        ([A, B], True),
        ([None, B], True),
        ([None, A], False),
        ([[A, C], [B]], True),
        ([[B, C]], False),
        ([[]], True),
        ([[C, None]], True),
        ([A, B, None], False),
        ([A.upper().replace("0X", "0x")], True),
    ],
)
def test_topics_match_position_by_position(topics: Any, matches: bool) -> None:
    assert log_filter.parse({"topics": topics}).matches(_log(TOKEN, A, B)) is matches


def test_a_filter_with_more_topics_than_the_log_matches_nothing() -> None:
    assert not log_filter.parse({"topics": [None]}).matches(_log(TOKEN))


@pytest.mark.parametrize(
    ("address", "matches"),
    [(None, True), ([], True), (TOKEN, True), (OTHER, False), ([OTHER, TOKEN], True)],
)
def test_the_address_filter_is_one_address_or_a_list(address: Any, matches: bool) -> None:
    assert log_filter.parse({"address": address}).matches(_log(TOKEN, A)) is matches


def test_address_and_topics_must_both_match() -> None:
    both = log_filter.parse({"address": TOKEN, "topics": [A]})
    assert both.select([_log(TOKEN, A), _log(TOKEN, B), _log(OTHER, A)]) == [b"{}"]


def test_a_filter_without_bounds_means_the_latest_block() -> None:
    parsed = log_filter.parse({})
    assert (parsed.first, parsed.last, parsed.block_hash) == ("latest", "latest", None)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        "0x1",
        {"fromBlock": 1},
        {"fromBlock": "1"},
        {"fromBlock": "0x01"},
        {"toBlock": "newest"},
        {"toBlock": "pending"},
        {"toBlock": hex(2**63)},
        {"blockHash": A, "toBlock": "0x1"},
        {"blockHash": "0x12"},
        {"address": "0x12"},
        {"address": [TOKEN, None]},
        {"topics": A},
        {"topics": [A, A, A, A, A]},
        {"topics": ["0x12"]},
        {"topics": [[A, 5]]},
    ],
)
def test_a_malformed_filter_is_rejected_as_invalid_params(bad: Any) -> None:
    with pytest.raises(InvalidParams):
        log_filter.parse(bad)
