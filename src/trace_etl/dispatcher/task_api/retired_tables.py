"""Which tables of Postgres data may go. Workers drop them: only they see that database."""

from dataclasses import asdict, dataclass
from datetime import timedelta

from trace_etl.api.task.retired_tables import RetiredTables, TablesHeld, TablesToDrop
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.partitions import retired_tables


@dataclass(frozen=True)
class RetiredGenerations:
    pool: Pool
    kept: timedelta
    batch_size: int

    async def to_drop(self, body: TablesHeld) -> TablesToDrop:
        """Of the tables that a worker holds, those whose generation was given up long ago."""
        async with transaction(self.pool) as conn:
            found = await retired_tables.to_drop(
                conn, body.tables, kept=self.kept, limit=self.batch_size
            )
        return TablesToDrop(retired=[RetiredTables.model_validate(asdict(one)) for one in found])
