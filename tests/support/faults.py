"""Connections that break at a chosen point: before or after a statement or a commit.

The connection really closes, so the server rolls back the open transaction and the pool must
replace the connection.
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


class FaultPlan:
    """Counts the points that connections reach, and breaks one point or all points of a kind."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._kind: str | None = None
        self._count = 0
        self.injected: list[str] = []
        """Descriptions of the injected faults."""

    @contextmanager
    def breaking(
        self, *, at: int | None = None, every: str | None = None
    ) -> Generator["FaultPlan"]:
        """Break the point with number `at`, or every point of kind `every`: `before` or `after`."""
        self._at, self._kind, self._count, self.injected = at, every, 0, []
        try:
            yield self
        finally:
            self._at = self._kind = None

    async def reach(self, conn: Any, kind: str, statement: str) -> None:
        """Count a point of a connection. Raises OperationalError if the plan breaks this point."""
        if self._at is None and self._kind is None:
            return
        number, self._count = self._count, self._count + 1
        if number == self._at or kind == self._kind:
            self.injected.append(f"{kind} {statement}")
            await conn.close()
            raise OperationalError(f"injected {kind} {statement}")


PLAN = FaultPlan()


class BreakingCursor(AsyncCursor[Any]):
    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        if not query:  # the pool checks its connections
            return await super().execute(query, params, **options)
        statement = " ".join(str(query).split())[:60]
        await PLAN.reach(self.connection, "before", statement)
        await super().execute(query, params, **options)
        await PLAN.reach(self.connection, "after", statement)
        return self


class BreakingConnection(Connection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = BreakingCursor

    async def rows(self, query: Any, values: Any, make: Any) -> list[Any]:
        statement = " ".join(query.split())[:60]
        await PLAN.reach(self, "before", statement)
        rows = await super().rows(query, values, make)
        await PLAN.reach(self, "after", statement)
        return rows

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with super().transaction(*args, **kwargs) as inner:
            yield inner
            await PLAN.reach(self, "before", "COMMIT")
        await PLAN.reach(self, "after", "COMMIT")

    async def commit(self) -> None:
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            return await super().commit()
        await PLAN.reach(self, "before", "COMMIT")
        await super().commit()
        return await PLAN.reach(self, "after", "COMMIT")


class BreakingPool(AsyncConnectionPool[Any]):
    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options | {"connection_class": BreakingConnection})


class BreakingCheckedPool(CheckedPool):
    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options | {"connection_class": BreakingConnection})


@contextmanager
def breakable() -> Generator[FaultPlan]:
    """Give every Dispatcher started in the block connections that the plan can break."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (state_pool, pgqueue):
            patch.setattr(module, "AsyncConnectionPool", BreakingPool)
        patch.setattr(state_pool, "CheckedPool", BreakingCheckedPool)
        yield PLAN
