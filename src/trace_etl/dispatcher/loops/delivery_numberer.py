"""Number the committed changes of datasets, while the tasks that explain them still exist."""

from dataclasses import dataclass

from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.feed import delivery_log


@dataclass(frozen=True)
class DeliveryNumberer:
    pool: Pool
    batch_size: int

    async def number_once(self) -> int:
        """Number one bounded batch. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            return await delivery_log.number_new(conn, limit=self.batch_size)
