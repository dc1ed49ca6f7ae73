"""What was verified of a range of blocks before it was committed. Part of the success marker."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field, StringConstraints

from trace_etl.api.body import Reply
from trace_etl.dag.chain.rules import LEVELS, Level

BlockHash = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{64}$")]
ShortText = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]


class RejectedAnswer(Reply):
    """An answer that contradicted a header. Its endpoint was set aside."""

    endpoint: ShortText
    block: int
    block_hash: ShortText
    field: ShortText
    expected: ShortText
    received: ShortText


class VerifiedRange(Reply):
    """A verified range of blocks, both ends included."""

    start: int
    end: int
    level: Level
    checks: list[ShortText]
    """The checks that were made of the data that was read."""
    rules_version: int
    exceptions: list[ShortText] = Field(default_factory=list[ShortText])
    """The exceptions of the chain, as the job or the RPC pool declares them."""
    endpoints: list[ShortText]
    """Host and port of the endpoints whose answers were used."""
    rejected: list[RejectedAnswer] = Field(default_factory=list[RejectedAnswer])
    first_parent_hash: BlockHash
    first_hash: BlockHash
    last_hash: BlockHash
    provisional: bool = False
    """The last blocks were not final when they were read. The range is read again when they are."""


class Disconnected(Exception):
    """Two consecutive ranges are not of the same chain."""


def join_ranges(parts: Sequence[VerifiedRange]) -> VerifiedRange:
    """Combine consecutive ranges. Raises Disconnected if they are not one chain.

    The whole is verified like its least verified part.
    """
    parts = sorted(parts, key=lambda part: part.start)
    for before, after in pairwise(parts):
        if after.start != before.end + 1:
            raise Disconnected(f"blocks {before.end + 1} to {after.start - 1} were not verified")
        if after.first_parent_hash != before.last_hash:
            raise Disconnected(
                f"block {after.start}, parentHash: expected {before.last_hash} (block {before.end} "
                f"of {', '.join(before.endpoints)}), received {after.first_parent_hash} (of "
                f"{', '.join(after.endpoints)})"
            )
    first, last = parts[0], parts[-1]
    return first.model_copy(
        update={
            "end": last.end,
            "level": min((part.level for part in parts), key=LEVELS.index),
            "checks": [c for c in first.checks if all(c in part.checks for part in parts)],
            "rules_version": min(part.rules_version for part in parts),
            "exceptions": sorted({name for part in parts for name in part.exceptions}),
            "last_hash": last.last_hash,
            "endpoints": sorted({name for part in parts for name in part.endpoints}),
            "provisional": any(part.provisional for part in parts),
            "rejected": [item for part in parts for item in part.rejected],
        }
    )
