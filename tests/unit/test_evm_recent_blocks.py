"""The follower's window of recent blocks: which blocks of a batch are new."""

import json
from itertools import pairwise

import pytest

from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.options import EvmOptions
from trace_etl.spark.evm.recent_blocks import BlockRef, LinkedBlock, RecentBlocks
from trace_etl.spark.evm.stream import EvmStreamReader, offset_at


def _block(number: int, fork: str = "a") -> BlockRef:
    return BlockRef(number, f"{fork}{number}".encode().rjust(32))


def _links(first: int, last: int, fork: str = "a", root: str | None = None) -> list[LinkedBlock]:
    """Blocks of a fork; `root` is the fork of the parent of the first."""
    blocks = [_block(first - 1, root or fork), *(_block(n, fork) for n in range(first, last + 1))]
    return [LinkedBlock(block, parent.hash) for parent, block in pairwise(blocks)]


HELD = RecentBlocks(_block(number) for number in range(10, 15))


@pytest.mark.parametrize(
    ("links", "new"),
    [
        (_links(15, 17), (15, 17)),
        (_links(12, 17), (15, 17)),
        (_links(11, 13), ()),
        (_links(13, 16, "b", root="a"), (13, 16)),
        ([*_links(11, 12), *_links(13, 13, "b", root="a")], (13, 13)),
        (_links(16, 17), None),
        (_links(15, 17, "b"), None),
        (_links(10, 17, "b"), None),
        ([*_links(15, 16), *_links(17, 18, "b")], None),
        ([*_links(15, 16), *_links(18, 19)], None),
    ],
    ids=[
        "next",
        "some_held",
        "all_held",
        "fork",
        "held_then_fork",
        "gap",
        "other_parent",
        "nothing_in_common",
        "mixed",
        "hole",
    ],
)
def test_new_blocks_must_extend_a_held_block(
    links: list[LinkedBlock], new: tuple[int, ...] | None
) -> None:
    selected = HELD.select_new(links, start=0)
    numbers = None if selected is None else [link.block.number for link in selected]
    assert numbers == (None if new is None else list(range(new[0], new[1] + 1)) if new else [])


def test_an_empty_window_accepts_blocks_from_the_start_only() -> None:
    assert RecentBlocks().select_new(_links(5, 6), start=5) == _links(5, 6)
    assert RecentBlocks().select_new(_links(6, 7), start=5) is None


def _options(offset: str) -> dict[str, str]:
    url = "http://127.0.0.1:9"
    return {"rpc_url": url, "dataset": "blocks", "start": "0", "starting_offset": offset}


def test_a_stream_begins_at_the_given_offset() -> None:
    offset = offset_at(HELD)
    reader = EvmStreamReader(EvmOptions.parse(_options(json.dumps(offset))))
    assert reader.initialOffset() == offset
    assert (offset["number"], offset["hash"]) == (14, f"0x{_block(14).hash.hex()}")


@pytest.mark.parametrize(
    "change",
    [{"trail": "00"}, {"hash": "0x00"}, {"number": 3}, {"trail": ""}, {"number": None}],
    ids=["short", "other_hash", "too_low", "empty", "no_number"],
)
def test_a_malformed_starting_offset_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(BadTask, match="starting_offset"):
        EvmOptions.parse(_options(json.dumps({**offset_at(HELD), **change})))
