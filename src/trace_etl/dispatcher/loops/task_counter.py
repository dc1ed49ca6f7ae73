"""Maintain counts of ended tasks, so that summaries need not count all rows."""

from dataclasses import dataclass

from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.tasks import task_counts


@dataclass(frozen=True)
class TaskCounter:
    pool: Pool
    batch_size: int

    async def count_once(self) -> int:
        """Add one bounded batch of ended tasks. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            return await task_counts.advance_counts(conn, limit=self.batch_size)
