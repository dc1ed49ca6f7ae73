"""Adds up the tasks that have ended, so that nobody has to count all of them."""

from dataclasses import dataclass

from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.tasks import task_counts


@dataclass(frozen=True)
class TaskCounter:
    pool: Pool
    batch_size: int

    async def count_once(self) -> int:
        """One bounded pass. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            return await task_counts.advance(conn, limit=self.batch_size)
