"""Delete finished rows after their retention, a bounded batch at a time."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.feed import changes, delivery_log, notifications, query_audit
from trace_etl.state.flow import backfill_steps
from trace_etl.state.invalidations import invalidations
from trace_etl.state.partitions import buffers
from trace_etl.state.rollout import remove
from trace_etl.state.storage import retired_generations
from trace_etl.state.tasks import read_grants

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class HistoryRetention:
    pool: Pool
    retention: timedelta
    audit_retention: timedelta
    batch_size: int

    async def delete_once(self) -> int:
        """Delete one bounded batch. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            swept = await retired_generations.sweep(
                conn, retention=self.retention, org_id=None, limit=self.batch_size
            )
        async with transaction(self.pool) as conn:
            other = await changes.delete_old(conn, older_than=self.retention, limit=self.batch_size)
            other += await delivery_log.delete_old(
                conn, older_than=self.retention, limit=self.batch_size
            )
            other += await backfill_steps.delete_ended(conn, older_than=self.retention)
            other += await buffers.delete_written(
                conn, older_than=self.retention, limit=self.batch_size
            )
            other += await invalidations.delete_processed(
                conn, older_than=self.retention, limit=self.batch_size
            )
            other += await read_grants.delete_unused(
                conn, older_than=self.retention, limit=self.batch_size
            )
            other += await notifications.delete_old(
                conn, older_than=self.retention, limit=self.batch_size
            )
            other += await remove.delete_data(conn, limit=self.batch_size)
            other += await query_audit.delete_old(
                conn, older_than=self.audit_retention, limit=self.batch_size
            )
        if swept:
            _log.info("retired_generations_swept", rows=swept)
        return swept + other
