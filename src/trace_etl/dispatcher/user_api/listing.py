"""Read one page of a list of the caller's org."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends

from trace_etl.dispatcher.user_api.context import Caller, CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import Page, PageDep
from trace_etl.state.db.pool import Pool

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Listing:
    """A list call: the caller and the requested page."""

    pool: Pool
    caller: Caller
    page: Page

    async def fetch(
        self, query: Callable[..., Awaitable[list[T]]], filters: object, *key_types: type
    ) -> list[T]:
        """Run a list query with a filter. `key_types` are the types of the list's sort key."""
        after = self.page.after(*key_types)
        async with self.pool.connection() as conn:
            return await query(
                conn, self.caller.org_id, filters, after=after, limit=self.page.fetch
            )

    def reply(
        self, kind: Callable[..., R], rows: Sequence[T], key: Callable[[T], Sequence[object]]
    ) -> R:
        """Build the reply of the list. `key` returns the sort key of a row."""
        return self.page.reply(kind, rows, key)


def _make_listing(ctx: ContextDep, caller: CallerDep, page: PageDep) -> Listing:
    return Listing(ctx.pool, caller, page)


ListingDep = Annotated[Listing, Depends(_make_listing)]
