"""Write batches from the buffer queue to Postgres data, and report them to the Dispatcher."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import structlog
from pydantic import ValidationError

from trace_etl.api.messages import BufferMessage
from trace_etl.api.task.buffers import MAX_BATCH_BYTES, BufferBatch, BufferResult
from trace_etl.data.buffer_writer import BufferWriter
from trace_etl.data.buffers import BufferTable, RowBatch, WrittenBatch
from trace_etl.data.errors import DataUnavailable, ValueRefused
from trace_etl.http.clients.dispatcher_client import Refused, Unreachable
from trace_etl.http.clients.sink_client import SinkClient
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import hot_table
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.retry import Backoff
from trace_etl.queues.queue import Message, QueueConsumer
from trace_etl.sink import batch_files
from trace_etl.sink.errors import BadBatch

QUEUE = "buffer"
MAX_TRIES = 10
_GROUP_BATCHES = 64
_GROUP_BYTES = 32 * 1024 * 1024
"""Batches are written together until their rows need this much memory."""
_VISIBILITY = timedelta(minutes=5)
_WAIT = timedelta(seconds=20)
_BATCH_BACKOFF = Backoff(timedelta(seconds=2), timedelta(minutes=5))
_FAILURE_BACKOFF = Backoff.of_seconds(0.2, 5)
_OUTAGE_DELAY = timedelta(seconds=5)
_OUTAGE_STATUSES = {None, 401, 429, 502, 503, 504}
"""Statuses that the batch does not cause: no answer, a token that was just rotated, an outage."""
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Delivery:
    """A message, and the batch that it names."""

    message: Message
    publish_id: UUID


@dataclass
class Outcome:
    """The results of the batches of some deliveries."""

    written: dict[UUID, WrittenBatch] = field(default_factory=dict[UUID, WrittenBatch])
    failed: dict[UUID, Exception] = field(default_factory=dict[UUID, Exception])


@dataclass(frozen=True)
class Sink:
    """Writes each batch once, even if several sinks run concurrently.

    Batches that wait together share a transaction, a report and their queue calls.
    """

    consumer: QueueConsumer
    client: SinkClient
    writer: BufferWriter
    objects: ObjectStore
    stop: threading.Event
    max_batch_bytes: int = MAX_BATCH_BYTES

    def run(self) -> None:
        """Write batches until `stop` is set."""
        failures = 0
        while not self.stop.is_set():
            try:
                self.write_once(wait=_WAIT)
                failures = 0
            except Exception as error:
                failures += 1
                _log.warning("sink_failed", failures=failures, error=repr(error))
                self.stop.wait(_FAILURE_BACKOFF.seconds(failures))

    def write_once(self, *, wait: timedelta = timedelta(0)) -> int:
        """Receive messages and settle them. Returns the number of messages that were settled."""
        messages = self.consumer.receive(
            limit=_GROUP_BATCHES, visibility=_VISIBILITY, wait=wait, stop=self.stop
        )
        settled = 0
        for group in self._form_groups(messages):
            self._settle(group)
            settled += len(group)
        return settled

    def _form_groups(self, messages: Sequence[Message]) -> list[list[Delivery]]:
        """Group first deliveries. Take one repeated delivery, alone, and return the others to the queue.

        A batch that ends the process would otherwise use up the tries of the batches beside it.
        """
        deliveries = [delivery for m in messages if (delivery := self._parse(m)) is not None]
        first = [d for d in deliveries if d.message.receive_count == 1]
        repeated = [d for d in deliveries if d.message.receive_count > 1]
        for delivery in repeated[1:]:
            self.consumer.delay(delivery.message, timedelta(0), counted=False)
        return [group for group in (first, repeated[:1]) if group]

    def _parse(self, message: Message) -> Delivery | None:
        try:
            body = BufferMessage.model_validate(
                {name: message.body.get(name) for name in BufferMessage.model_fields}
            )
        except ValidationError as error:
            _log.error("message_invalid", receipt=message.receipt, error=str(error))
            self.consumer.dead_letter(message)
            return None
        return Delivery(message, body.publish_id)

    def _settle(self, group: Sequence[Delivery]) -> None:
        """Write the batches of a group, report them, and settle their messages."""
        try:
            outcome = self._write_group(group)
        except (Refused, Unreachable) as error:
            outcome = Outcome(failed={d.publish_id: error for d in group})
        final = {
            d.publish_id: error
            for d in group
            if (error := outcome.failed.get(d.publish_id)) is not None and _is_final(d, error)
        }
        results = [_report_written(i, w) for i, w in outcome.written.items()]
        results += [_report_failed(i, error) for i, error in final.items()]
        reported = self._report(results)
        for delivery in group:
            self._settle_message(delivery, outcome, final, reported)

    def _write_group(self, group: Sequence[Delivery]) -> Outcome:
        """Write batches once. Raises Refused, Unreachable."""
        ids = list(dict.fromkeys(delivery.publish_id for delivery in group))
        batches = self.client.fetch_batches(ids)
        outcome = Outcome()
        try:
            pending: list[tuple[BufferBatch, RowBatch]] = []
            for delivery in group:
                try:
                    pending.append(self._read(delivery, batches))
                except Exception as error:  # the other batches are not affected
                    outcome.failed[delivery.publish_id] = error
                if sum(new.rows.nbytes for _, new in pending) >= _GROUP_BYTES:
                    self._write_pending(pending, outcome)
                    pending = []
            self._write_pending(pending, outcome)
            self._find_written(outcome)
        except DataUnavailable as error:
            raise Unreachable(error.detail) from error
        return outcome

    def _find_written(self, outcome: Outcome) -> None:
        """Correct failures of batches that an earlier delivery wrote: their files may be gone."""
        if outcome.failed:
            written = self.writer.find_written(list(outcome.failed))
            outcome.written |= written
            for publish_id in written:
                del outcome.failed[publish_id]

    def _read(
        self, delivery: Delivery, batches: dict[UUID, BufferBatch]
    ) -> tuple[BufferBatch, RowBatch]:
        batch = batches.get(delivery.publish_id)
        if batch is None:
            raise BadBatch(
                "the Dispatcher no longer knows this batch; publish it again if its rows are missing"
            )
        if delivery.message.receive_count > MAX_TRIES:  # every sink that received it died
            raise BadBatch(
                f"the batch was received {MAX_TRIES} times and never settled; see the log of the sink"
            )
        rows = batch_files.read_rows(batch, self.objects, max_bytes=self.max_batch_bytes)
        return batch, RowBatch(batch.publish_id, batch.publish_no, batch.org_id, rows)

    def _write_pending(
        self, pending: Sequence[tuple[BufferBatch, RowBatch]], outcome: Outcome
    ) -> None:
        tables: dict[BufferTable, list[RowBatch]] = {}
        for batch, new in pending:
            tables.setdefault(_get_table(batch), []).append(new)
        for table, batches in tables.items():
            self._write_table(table, batches, outcome)

    def _write_table(self, table: BufferTable, batches: list[RowBatch], outcome: Outcome) -> None:
        """Write the batches of a table together. If that fails, write each alone to find the cause."""
        try:
            outcome.written |= self.writer.write(table, batches)
        except DataUnavailable:
            raise
        except Exception as error:
            if len(batches) > 1:
                for batch in batches:
                    self._write_table(table, [batch], outcome)
                return
            final = BadBatch(error.detail) if isinstance(error, ValueRefused) else error
            outcome.failed[batches[0].publish_id] = final

    # --- reports and messages -------------------------------------------------------------------

    def _report(self, results: list[BufferResult]) -> Refused | Unreachable | None:
        """Report results. Returns the error if the Dispatcher did not accept them."""
        try:
            if results:
                self.client.complete_batches(results)
        except (Refused, Unreachable) as error:
            return error
        return None

    def _settle_message(
        self,
        delivery: Delivery,
        outcome: Outcome,
        final: dict[UUID, Exception],
        unreported: Refused | Unreachable | None,
    ) -> None:
        message, publish_id = delivery.message, delivery.publish_id
        log = _log.bind(publish_id=str(publish_id), receives=message.receive_count)
        written = outcome.written.get(publish_id)
        if unreported is not None and (written is not None or publish_id in final):
            log.error("result_not_reported", status=unreported.status, detail=unreported.detail)
            self._delay(message, unreported, is_final=publish_id in final)
        elif written is not None:
            self.consumer.delete(message)
            log.info("batch_written", rows=written.row_count, cursor=written.cursor)
        elif publish_id in final:
            log.error("batch_dead_lettered", reason=str(final[publish_id]))
            self.consumer.dead_letter(message)
        else:
            error = outcome.failed[publish_id]
            log.warning("batch_delayed", error=str(error))
            self._delay(message, error)

    def _delay(self, message: Message, error: Exception, *, is_final: bool = False) -> None:
        """Retry with growing delays. An outage does not count as a try."""
        if isinstance(error, Refused | Unreachable) and error.status in _OUTAGE_STATUSES:
            self.consumer.delay(message, _OUTAGE_DELAY, counted=False)
        elif is_final:
            self.consumer.delay(message, _BATCH_BACKOFF.max_delay)
        else:
            self.consumer.delay(message, _BATCH_BACKOFF.delay(message.receive_count))


def _is_final(delivery: Delivery, error: Exception) -> bool:
    """Whether the batch is given up: it can never be written, or it was tried too often."""
    if isinstance(error, BadBatch):
        return True
    if isinstance(error, Refused | Unreachable) and error.status in _OUTAGE_STATUSES:
        return False
    return delivery.message.receive_count >= MAX_TRIES


def _report_written(publish_id: UUID, written: WrittenBatch) -> BufferResult:
    return BufferResult(
        publish_id=publish_id,
        status="Completed",
        row_count=written.row_count,
        cursor=written.cursor,
    )


def _report_failed(publish_id: UUID, error: Exception) -> BufferResult:
    reported = error if isinstance(error, TraceError) else TraceError(str(error))
    return BufferResult(
        publish_id=publish_id,
        status="Failed",
        error_code=reported.code,
        error_message=reported.detail.replace("\x00", "")[:8000],
    )


def _get_table(batch: BufferBatch) -> BufferTable:
    columns = tuple((c.name, c.type, c.nullable) for c in batch.columns or ())
    name = hot_table(batch.dataset_uuid, batch.dataset_version)
    return BufferTable(name, batch.dataset_version, columns, tuple(batch.unique_key))
