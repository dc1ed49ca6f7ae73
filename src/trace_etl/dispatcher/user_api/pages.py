"""Keyset paging for every list of the user API: `limit`, `after`, and the `next` to pass as `after`.

There is no OFFSET: a page costs the same at the end of a list as at its start, and rows that are
added or removed meanwhile do not shift the others. A handler with a filter (see `listing.py`):

    async def list_events(
        listing: ListingDep, filters: Annotated[EventFilter, Depends()]
    ) -> EventList:
        rows = await listing.fetch(event_log.list_events, filters, datetime, UUID)
        return listing.reply(EventList, rows, lambda event: (event.accepted_at, event.event_id))

The SQL compares rows in the order it sorts by: `(a, b) > (%(after_a)s, %(after_b)s)`.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast, overload
from uuid import UUID

import orjson
from fastapi import Depends, Query

from trace_etl.model.errors import Fault, Invalid

MAX_LIMIT = 1000
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")
_PARSERS: dict[type, Callable[[Any], object]] = {
    str: str,
    int: int,
    UUID: UUID,
    datetime: datetime.fromisoformat,
}


@dataclass(frozen=True)
class Page:
    """The requested page of a list."""

    limit: int
    token: str | None

    @property
    def fetch(self) -> int:
        """The number of rows to read: one more than shown, to see whether another page follows."""
        return self.limit + 1

    @overload
    def after(self, first: type[A], /) -> tuple[A] | None: ...
    @overload
    def after(self, first: type[A], second: type[B], /) -> tuple[A, B] | None: ...
    @overload
    def after(
        self, first: type[A], second: type[B], third: type[C], /
    ) -> tuple[A, B, C] | None: ...
    @overload
    def after(self, *kinds: type) -> tuple[Any, ...] | None: ...
    def after(self, *kinds: type) -> tuple[Any, ...] | None:
        """Return the key of the previous page's last row; None on the first page. Raises Invalid."""
        if self.token is None:
            return None
        try:
            return decode_key(self.token, kinds)
        except ValueError as error:
            raise Invalid([Fault("after", "pass the `next` of the previous page")]) from error

    def cut(
        self, rows: Sequence[T], key: Callable[[T], Sequence[object]]
    ) -> tuple[list[T], str | None]:
        """Return the rows to show, and the `next` of the reply."""
        shown = list(rows[: self.limit])
        if len(rows) <= self.limit:
            return shown, None
        return shown, encode_key(key(shown[-1]))

    def reply(
        self, kind: Callable[..., R], rows: Sequence[T], key: Callable[[T], Sequence[object]]
    ) -> R:
        """Build the reply of a list, a `ListReply`, from the rows that were fetched."""
        items, following = self.cut(rows, key)
        return kind(items=items, next=following)


def encode_key(key: Sequence[object]) -> str:
    """Encode a key as an opaque token."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def decode_key(token: str, kinds: Sequence[type]) -> tuple[Any, ...]:
    """Decode a token into a key. Raises ValueError for a token that `encode_key` did not make."""
    padded = token + "=" * (-len(token) % 4)
    values = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    if not isinstance(values, list):
        raise ValueError("not a key")
    return tuple(_parse(*pair) for pair in zip(kinds, cast(list[Any], values), strict=True))


def _parse(kind: type, value: Any) -> object:
    if not isinstance(value, int if kind is int else str) or "\0" in str(value):
        raise ValueError(f"not a {kind.__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("out of range for a Postgres bigint")
    return _PARSERS[kind](value)


def _read_page(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items.")] = 100,
    after: Annotated[
        str | None, Query(max_length=1024, description="The `next` of the previous page.")
    ] = None,
) -> Page:
    return Page(limit, after)


PageDep = Annotated[Page, Depends(_read_page)]
