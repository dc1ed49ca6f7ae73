"""Connections that break at a chosen point: before or after a statement, before or after a commit.

The connection really closes, so the server rolls back what was open, and the pool must replace it.
"""

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from psycopg import AsyncCursor, OperationalError
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from trace_etl.queues import pgqueue
from trace_etl.state.db import pool as state_pool
from trace_etl.state.db.connection import Connection
from trace_etl.state.db.pool import CheckedPool


class Plan:
    """Counts the points that armed connections pass, and breaks one of them, or all of a kind."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._kind: str | None = None
        self._passed = 0
        self.struck: list[str] = []
        """What was broken, in words."""

    @contextmanager
    def breaking(self, *, at: int | None = None, every: str | None = None) -> Generator["Plan"]:
        """Break the point of that number, or every point `before` or `after` something."""
        self._at, self._kind, self._passed, self.struck = at, every, 0, []
        try:
            yield self
        finally:
            self._at = self._kind = None

    async def passes(self, conn: Any, kind: str, what: str) -> None:
        """A connection reaches a point. Raises what a broken connection raises."""
        if self._at is None and self._kind is None:
            return
        number, self._passed = self._passed, self._passed + 1
        if number == self._at or kind == self._kind:
            self.struck.append(f"{kind} {what}")
            await conn.close()
            raise OperationalError(f"injected {kind} {what}")


PLAN = Plan()


class BreakingCursor(AsyncCursor[Any]):
    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        if not query:  # the pool looking after its connections
            return await super().execute(query, params, **options)
        what = " ".join(str(query).split())[:60]
        await PLAN.passes(self.connection, "before", what)
        await super().execute(query, params, **options)
        await PLAN.passes(self.connection, "after", what)
        return self


class BreakingConnection(Connection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = BreakingCursor

    async def rows(self, query: Any, values: Any, make: Any) -> list[Any]:
        what = " ".join(query.split())[:60]
        await PLAN.passes(self, "before", what)
        found = await super().rows(query, values, make)
        await PLAN.passes(self, "after", what)
        return found

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with super().transaction(*args, **kwargs) as inner:
            yield inner
            await PLAN.passes(self, "before", "COMMIT")
        await PLAN.passes(self, "after", "COMMIT")

    async def commit(self) -> None:
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            return await super().commit()
        await PLAN.passes(self, "before", "COMMIT")
        await super().commit()
        return await PLAN.passes(self, "after", "COMMIT")


class BreakingPool(AsyncConnectionPool[Any]):
    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options | {"connection_class": BreakingConnection})


class BreakingCheckedPool(CheckedPool):
    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options | {"connection_class": BreakingConnection})


@contextmanager
def breakable() -> Generator[Plan]:
    """Dispatchers started in the block have connections that the plan can break."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (state_pool, pgqueue):
            patch.setattr(module, "AsyncConnectionPool", BreakingPool)
        patch.setattr(state_pool, "CheckedPool", BreakingCheckedPool)
        yield PLAN
