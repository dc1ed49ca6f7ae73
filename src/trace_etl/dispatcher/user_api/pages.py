"""How every list of the user API is paged: `limit`, `after`, and a `next` that is the next `after`.

Keyset, never OFFSET: a page costs the same at the end of a list as at its start, and rows that come
or go meanwhile shift nothing. A handler:

    async def list_things(user: CallerDep, ctx: ContextDep, page: PageDep) -> wire.ThingList:
        async with ctx.pool.connection() as conn:
            found = await things.listing(conn, user.org_id, limit=page.fetch, after=page.after(str))
        items, following = page.cut(found, lambda thing: (thing.name,))
        return wire.ThingList(items=[...], next=following)

The SQL compares rows, in the order it sorts by: `(a, b) > (%(after_a)s, %(after_b)s)`.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID

import orjson
from fastapi import Depends, Query

from trace_etl.model.errors import Fault, Invalid

MOST = 1000
T = TypeVar("T")
_READ: dict[type, Callable[[Any], object]] = {
    str: str,
    int: int,
    UUID: UUID,
    datetime: datetime.fromisoformat,
}


@dataclass(frozen=True)
class Page:
    """What part of a list the caller wants."""

    limit: int
    token: str | None

    @property
    def fetch(self) -> int:
        """How many rows to read: one more than shown tells whether another page follows."""
        return self.limit + 1

    def after(self, *kinds: type) -> tuple[Any, ...] | None:
        """The key of the last row of the page before; None on the first. Raises Invalid."""
        if self.token is None:
            return None
        try:
            return decode(self.token, kinds)
        except ValueError as error:
            raise Invalid([Fault("after", "pass the `next` of the page before")]) from error

    def cut(
        self, found: Sequence[T], key: Callable[[T], Sequence[object]]
    ) -> tuple[list[T], str | None]:
        """The rows to show, and the `next` of the answer."""
        shown = list(found[: self.limit])
        if len(found) <= self.limit:
            return shown, None
        return shown, encode(key(shown[-1]))


def encode(key: Sequence[object]) -> str:
    """A key as callers see it: a word without meaning to them."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")


def decode(token: str, kinds: Sequence[type]) -> tuple[Any, ...]:
    """The key again. Raises ValueError for a word that nobody handed out."""
    padded = token + "=" * (-len(token) % 4)
    values = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    if not isinstance(values, list):
        raise ValueError("not a key")
    return tuple(_read(*pair) for pair in zip(kinds, cast(list[Any], values), strict=True))


def _read(kind: type, value: Any) -> object:
    if not isinstance(value, int if kind is int else str) or "\0" in str(value):
        raise ValueError(f"not a {kind.__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("more than Postgres can hold")
    return _READ[kind](value)


def _page(
    limit: Annotated[int, Query(ge=1, le=MOST, description="How many at most.")] = 100,
    after: Annotated[
        str | None, Query(max_length=1024, description="The `next` of the page before.")
    ] = None,
) -> Page:
    return Page(limit, after)


PageDep = Annotated[Page, Depends(_page)]


def newest(page: Page) -> tuple[datetime, UUID] | None:
    """The position in a list that is sorted by time and id, newest first."""
    after = page.after(datetime, UUID)
    return (after[0], after[1]) if after else None
