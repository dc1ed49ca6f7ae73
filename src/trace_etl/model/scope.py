"""Block ranges, the scope of events, tasks and partitions."""

from dataclasses import dataclass
from typing import Literal

from trace_etl.model.errors import Fault, Invalid

ScopeKind = Literal["partition", "row_range"]
"""A scope that is invalid: a partition, or the rows of a block range."""

MAX_BLOCK = (
    2**53 - 1
)  # ranges are indexed as doubles, which represent all integers up to this one exactly


@dataclass(frozen=True)
class Range:
    """Blocks `start` to `end`, both inclusive."""

    start: int
    end: int

    @property
    def key(self) -> str:
        return f"{self.start}-{self.end}"

    @property
    def length(self) -> int:
        return self.end - self.start + 1

    @classmethod
    def checked(cls, start: int, end: int) -> "Range":
        """Return a valid range. Raises Invalid that names the field."""
        if not 0 <= start <= MAX_BLOCK:
            raise Invalid([Fault("start", f"must be between 0 and {MAX_BLOCK}, not {start}")])
        if end < start:
            raise Invalid([Fault("end", f"must not be less than start ({start}), but is {end}")])
        if end > MAX_BLOCK:
            raise Invalid([Fault("end", f"must be at most {MAX_BLOCK}, not {end}")])
        return cls(start, end)

    @classmethod
    def from_key(cls, partition_key: str) -> "Range | None":
        """Return the range that a partition key names, or None for a key of another form."""
        try:
            span = cls.parse(partition_key)
        except Invalid:
            return None
        return span if span.key == partition_key else None

    @classmethod
    def parse(cls, text: str) -> "Range":
        """Parse a text such as `1000-1999`. Raises Invalid."""
        head, dash, tail = text.partition("-")
        if not (dash and head.strip().isdecimal() and tail.strip().isdecimal()):
            raise Invalid([Fault("range", f"must be START-END, for example 0-9999, not {text!r}")])
        return cls.checked(int(head), int(tail))


def make_range(start: int | None, end: int | None) -> Range | None:
    """Return the range of two numbers that are both given, or both missing."""
    return None if start is None or end is None else Range(start, end)
