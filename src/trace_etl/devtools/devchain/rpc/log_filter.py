"""The filter object of eth_getLogs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from trace_etl.devtools.devchain.chain.blocks import LogJson
from trace_etl.devtools.devchain.rpc import params
from trace_etl.devtools.devchain.rpc.errors import InvalidParams

# The allowed topics at one position; None allows all.
Choice: TypeAlias = frozenset[str] | None

_MAX_TOPICS = 4


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A block range or block hash, with addresses and topics that logs must have."""

    block_hash: str | None
    first: int | str
    last: int | str
    addresses: frozenset[str] | None
    topics: tuple[Choice, ...]

    @property
    def takes_all(self) -> bool:
        """Whether every log of its blocks matches."""
        return self.addresses is None and not self.topics

    def matches(self, log: LogJson) -> bool:
        """Whether a log has one of the addresses and, position by position, one of the topics."""
        if self.addresses is not None and log.address not in self.addresses:
            return False
        if len(self.topics) > len(log.topics):
            return False
        return all(
            choice is None or topic in choice
            for choice, topic in zip(self.topics, log.topics, strict=False)
        )

    def select(self, logs: Sequence[LogJson]) -> list[bytes]:
        """Return the matching logs as JSON."""
        if self.takes_all:
            return [log.json for log in logs]
        return [log.json for log in logs if self.matches(log)]


def parse(value: Any) -> LogFilter:
    """Read a filter object. Raises InvalidParams."""
    if not isinstance(value, dict):
        raise InvalidParams("invalid argument 0: not a filter object")
    fields = cast("dict[str, Any]", value)
    block_hash, first, last = (fields.get(key) for key in ("blockHash", "fromBlock", "toBlock"))
    if block_hash is not None and (first is not None or last is not None):
        raise InvalidParams("cannot specify both blockHash and fromBlock/toBlock")
    return LogFilter(
        block_hash=None if block_hash is None else params.block_hash(block_hash, 0),
        first=_parse_bound(first),
        last=_parse_bound(last),
        addresses=_parse_addresses(fields.get("address")),
        topics=_parse_topics(fields.get("topics")),
    )


def _parse_bound(value: Any) -> int | str:
    bound = "latest" if value is None else params.block_tag(value, 0)
    if bound == "pending":
        raise InvalidParams("pending logs are not supported")
    return bound


def _parse_addresses(value: Any) -> frozenset[str] | None:
    if value is None or value == []:
        return None
    members = cast("list[Any]", value) if isinstance(value, list) else [value]
    return frozenset(params.address(member, 0) for member in members)


def _parse_topics(value: Any) -> tuple[Choice, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidParams("invalid argument 0: topics is not an array")
    positions = cast("list[Any]", value)
    if len(positions) > _MAX_TOPICS:
        raise InvalidParams("exceed max topics")
    return tuple(map(_parse_choice, positions))


def _parse_choice(value: Any) -> Choice:
    """Parse a topic, a list of topics, or null. Null and a list that is empty or has a null allow
    every topic."""
    members = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not members or None in members:
        return None
    return frozenset(params.block_hash(member, 0) for member in members)
