"""Decide which tables of Postgres data may be dropped. The sink drops them."""

from dataclasses import dataclass
from datetime import timedelta

from trace_etl.api.task.retired_tables import TablesHeld, TablesToDrop
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.partitions import retired_tables


@dataclass(frozen=True)
class RetiredTableCheck:
    pool: Pool
    retention: timedelta
    batch_size: int

    async def to_drop(self, body: TablesHeld) -> TablesToDrop:
        """Return those tables whose generation was retired longer ago than the retention."""
        async with transaction(self.pool) as conn:
            droppable = await retired_tables.find_droppable(
                conn, body.tables, retention=self.retention, limit=self.batch_size
            )
        return TablesToDrop(retired=droppable)
