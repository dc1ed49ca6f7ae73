"""Delete stored objects that nothing uses, after their retention, a bounded batch at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.model.storage import (
    BUFFERS,
    SUCCESS_MARKER,
    batch_prefixes,
    bundle_key,
    key_of_url,
)
from trace_etl.objects.errors import StorageError
from trace_etl.objects.store import Deleted, ObjectStore
from trace_etl.policy.storage_retention import StorageRetention
from trace_etl.state.bundles import uploads
from trace_etl.state.bundles.uploads import EndedUpload
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.storage import (
    retired_generations,
    sweep_lock,
    unused_prefixes,
    written_batches,
)
from trace_etl.state.storage.unused_prefixes import Measured, UnusedPrefix
from trace_etl.state.storage.written_batches import SweepableBatch

_HOLD = timedelta(
    minutes=10
)  # a replica that dies leaves its prefixes to the others after this time
_THREADS = 8
_ROWS = 500
_log = structlog.stdlib.get_logger()
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Swept:
    """What a sweep deleted."""

    prefixes: int = 0
    batches: int = 0
    objects: int = 0
    bytes: int = 0
    failures: int = 0

    def __add__(self, other: "Swept") -> "Swept":
        return Swept(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class StorageSweeper:
    pool: Pool
    store: ObjectStore
    retention: StorageRetention
    batch_size: int

    async def sweep_once(self) -> int:
        """Measure and delete one bounded batch. Safe on every replica at once.

        Returns the number of prefixes, batches and uploads. Those that could not be deleted do not count.
        """
        measured = await self.measure_once()
        swept = await self._sweep_prefixes(None) + await self._sweep_batches(None)
        return measured + swept.prefixes + swept.batches + await self._sweep_uploads()

    async def sweep(self, org_id: UUID, *, seconds: float) -> tuple[Swept, bool]:
        """Delete what is due in one organisation. Returns False if the time limit ended the sweep."""
        total, deadline = Swept(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            retired = await self._sweep_generations(org_id)
            swept = await self._sweep_prefixes(org_id) + await self._sweep_batches(org_id)
            total += swept
            if not retired and not swept.prefixes and not swept.batches:
                return total, True
        return total, False

    async def _sweep_generations(self, org_id: UUID) -> int:
        """Delete rows of retired generations, so that their prefixes become due. Returns their number."""
        async with transaction(self.pool) as conn:
            return await retired_generations.sweep(
                conn, retention=self.retention.retired, org_id=org_id, limit=_ROWS
            )

    # --- prefixes ---------------------------------------------------------------------------

    async def _sweep_prefixes(self, org_id: UUID | None) -> Swept:
        async with transaction(self.pool) as conn:
            if not await sweep_lock.may_sweep(conn):
                return Swept()
            taken = await unused_prefixes.take_due(
                conn,
                self.retention,
                scheme=self.store.scheme,
                org_id=org_id,
                hold=_HOLD,
                limit=self.batch_size,
            )
            producers = [item.task_id for item in taken if item.prefix.startswith(BUFFERS)]
            published = await unused_prefixes.list_published_batches(conn, producers)
        # The transaction has ended. From here on, a crash leaves rows that the next sweep takes again.
        keep = frozenset(map(key_of_url, published))
        deleted, failures = await _run_each(taken, lambda item: self._delete_prefix(item, keep))
        if deleted:
            async with transaction(self.pool) as conn:
                await unused_prefixes.forget(conn, [item.prefix for item, _ in deleted])
        for item, result in deleted:
            _count(item.kind, result.objects, result.bytes)
        return Swept(
            prefixes=len(deleted),
            objects=sum(result.objects for _, result in deleted),
            bytes=sum(result.bytes for _, result in deleted),
            failures=failures,
        )

    def _delete_prefix(self, item: UnusedPrefix, keep: frozenset[str]) -> Deleted:
        prefix = self._make_key(item)
        deleted = self.store.delete_prefix(prefix, first=SUCCESS_MARKER, keep=keep)
        _log.info("prefix_swept", prefix=prefix, kind=item.kind, **vars(deleted))
        return deleted

    async def measure_once(self) -> int:
        """Record the sizes of one bounded batch of prefixes. Returns their number."""
        async with self.pool.connection() as conn:
            found = await unused_prefixes.find_unmeasured(
                conn, scheme=self.store.scheme, limit=self.batch_size
            )
        measured, _ = await _run_each(found, self._measure_prefix)
        if measured:
            async with transaction(self.pool) as conn:
                await unused_prefixes.record_sizes(conn, [size for _, size in measured])
        return len(measured)

    def _measure_prefix(self, item: UnusedPrefix) -> Measured:
        sizes = [entry.size for entry in self.store.list(self._make_key(item))]
        return Measured(item.prefix, len(sizes), sum(sizes))

    def _make_key(self, item: UnusedPrefix) -> str:
        return f"{item.bucket or self.store.org_root(item.org_id)}/{item.prefix}"

    # --- batches ----------------------------------------------------------------------------

    async def _sweep_batches(self, org_id: UUID | None) -> Swept:
        async with transaction(self.pool) as conn:
            if not await sweep_lock.may_sweep(conn):
                return Swept()
            due = await written_batches.find_due(
                conn, retention=self.retention.batches, org_id=org_id, limit=self.batch_size
            )
        deleted, failures = await _run_each(due, self._delete_batch)
        if deleted:
            async with transaction(self.pool) as conn:
                await written_batches.mark_swept(conn, [batch.publish_id for batch, _ in deleted])
        objects = sum(count for _, count in deleted)
        size = sum(batch.batch_size_bytes or 0 for batch, count in deleted if count)
        _count("batches", objects, size)
        return Swept(batches=len(deleted), objects=objects, bytes=size, failures=failures)

    def _delete_batch(self, batch: SweepableBatch) -> int:
        root, key = self.store.org_root(batch.org_id), key_of_url(batch.batch_uri)
        own = batch_prefixes(batch.dataset_uuid, batch.task_id, batch.attempt)
        if not key.startswith(tuple(f"{root}/{prefix}" for prefix in own)):
            _log.warning("foreign_batch_kept", publish_id=batch.publish_id, batch_uri=key)
            return 0
        self.store.delete(key)
        return 1

    # --- uploads of bundles -------------------------------------------------------------------

    async def _sweep_uploads(self) -> int:
        """Delete the objects of uploads that ended without a bundle. Returns the number of uploads."""
        async with transaction(self.pool) as conn:
            if not await sweep_lock.may_sweep(conn):
                return 0
            ended = await uploads.take_ended(conn, hold=_HOLD, limit=self.batch_size)
        deleted, _ = await _run_each(ended, self._delete_upload)
        if deleted:
            async with transaction(self.pool) as conn:
                await uploads.forget(conn, [upload.upload_id for upload, _ in deleted])
        return len(deleted)

    def _delete_upload(self, upload: EndedUpload) -> None:
        if not upload.is_used:
            self.store.delete(bundle_key(self.store.org_root(upload.org_id), upload.sha256))


async def _run_each(items: Sequence[T], step: Callable[[T], R]) -> tuple[list[tuple[T, R]], int]:
    """Run a step for each item in threads. Returns the results, and the number of failures."""
    slots = asyncio.Semaphore(_THREADS)

    async def run(item: T) -> R | StorageError:
        async with slots:
            try:
                return await asyncio.to_thread(step, item)
            except StorageError as error:
                metrics.SWEEP_FAILURES.inc()
                _log.warning("sweep_failed", item=str(item), error=str(error))
                return error

    results = await asyncio.gather(*map(run, items))
    done = [
        (item, result)
        for item, result in zip(items, results, strict=True)
        if not isinstance(result, StorageError)
    ]
    return done, len(items) - len(done)


def _count(kind: str, objects: int, size: int) -> None:
    metrics.SWEPT_OBJECTS.labels(kind).inc(objects)
    metrics.SWEPT_BYTES.labels(kind).inc(size)
