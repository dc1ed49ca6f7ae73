"""Maintain counts of ended tasks and of partitions, so that summaries need not count all rows."""

from dataclasses import dataclass

from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.partitions import generation_totals
from trace_etl.state.tasks import task_counts

_GENERATIONS = 1_000


@dataclass(frozen=True)
class TaskCounter:
    pool: Pool
    batch_size: int

    async def count_once(self) -> int:
        """Add one bounded batch of ended tasks, and merge totals. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            await generation_totals.merge_totals(conn, limit=_GENERATIONS)
        async with transaction(self.pool) as conn:
            return await task_counts.advance_counts(conn, limit=self.batch_size)
