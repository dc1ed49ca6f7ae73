"""Write batches from the buffer queue to Postgres data, and report each to the Dispatcher."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import structlog
from pydantic import ValidationError

from trace_etl.api.messages import BufferMessage
from trace_etl.api.task.buffers import BufferBatch, BufferComplete
from trace_etl.data import buffers, connection
from trace_etl.data.buffers import BatchIdentity, BufferTable, WrittenBatch
from trace_etl.data.errors import DataUnavailable
from trace_etl.http.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import hot_table
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.retry import Backoff
from trace_etl.queues.queue import Message, QueueConsumer
from trace_etl.sink import batch_files
from trace_etl.sink.batch_files import BadBatch

QUEUE = "buffer"
MAX_TRIES = 10
_VISIBILITY = timedelta(minutes=5)
_WAIT = timedelta(seconds=20)
_BATCH_BACKOFF = Backoff(timedelta(seconds=2), timedelta(minutes=5))
_FAILURE_BACKOFF = Backoff.of_seconds(0.2, 5)
_OUTAGE_DELAY = timedelta(seconds=5)
_OUTAGE_STATUSES = {None, 401, 429, 502, 503, 504}
"""Statuses that the batch does not cause: no answer, a token that was just rotated, an outage."""
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Sink:
    """Writes each batch once, even if several sinks run concurrently."""

    consumer: QueueConsumer
    client: DispatcherClient
    data_dsn: str
    objects: ObjectStore
    stop: threading.Event

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
        """Receive one message and settle it. Returns the number of messages received."""
        messages = self.consumer.receive(limit=1, visibility=_VISIBILITY, wait=wait, stop=self.stop)
        for message in messages:
            self._settle(message)
        return len(messages)

    def _settle(self, message: Message) -> None:
        try:
            body = BufferMessage.model_validate(
                {name: message.body.get(name) for name in BufferMessage.model_fields}
            )
        except ValidationError as error:
            _log.error("message_invalid", receipt=message.receipt, error=str(error))
            self.consumer.dead_letter(message)
            return
        log = _log.bind(publish_id=str(body.publish_id), receives=message.receive_count)
        try:
            written = self._write_and_report(body, message.receive_count)
        except BadBatch as error:
            log.error("batch_refused", reason=error.detail)
            self._give_up(message, body, error)
        except (Refused, Unreachable) as error:
            self._retry_call(message, body, error)
        except Exception as error:  # record any reason and continue
            self._retry_later(message, body, error)
        else:
            self.consumer.delete(message)
            log.info("batch_written", rows=written.row_count, cursor=written.cursor)

    def _write_and_report(self, body: BufferMessage, receive_count: int) -> WrittenBatch:
        """Write a batch once and report it. Raises BadBatch, or errors that a retry may fix."""
        try:
            batch = self.client.buffer_fetch(body.publish_id)
            written = self._write(batch, receive_count)
            self.client.buffer_complete(
                BufferComplete(
                    publish_id=batch.publish_id,
                    status="Completed",
                    row_count=written.row_count,
                    cursor=written.cursor,
                )
            )
        except Refused as refusal:
            if refusal.refusal == "not_found":
                raise BadBatch("the Dispatcher no longer knows this batch") from refusal
            raise
        return written

    def _write(self, batch: BufferBatch, receive_count: int = 1) -> WrittenBatch:
        with ExitStack() as stack:
            try:
                conn = stack.enter_context(connection.connect(self.data_dsn))
            except DataUnavailable as error:
                raise Unreachable(error.detail) from error
            if (written := buffers.find_written_batch(conn, batch.publish_id)) is not None:
                return written
            if receive_count > MAX_TRIES:  # every sink that received it died before settling it
                raise BadBatch(f"the batch was received {MAX_TRIES} times and never settled")
            rows = batch_files.read_rows(batch, self.objects)
            identity = BatchIdentity(batch.publish_id, batch.publish_no, batch.org_id)
            with connection.transaction(conn):
                return buffers.write_batch(conn, _table(batch), identity, rows)

    def _retry_call(
        self, message: Message, body: BufferMessage, error: Refused | Unreachable
    ) -> None:
        """Retry a batch without limit during an outage. Count every other failure as a try."""
        if error.status not in _OUTAGE_STATUSES:
            self._retry_later(message, body, error)
            return
        _log.warning("batch_waits_for_outage", publish_id=str(body.publish_id), error=str(error))
        self.consumer.delay(message, _OUTAGE_DELAY, counted=False)

    def _retry_later(self, message: Message, body: BufferMessage, error: Exception) -> None:
        """Retry with growing delays, up to MAX_TRIES times."""
        if message.receive_count >= MAX_TRIES:
            _log.error(
                "batch_failed_permanently", publish_id=str(body.publish_id), error=str(error)
            )
            self._give_up(message, body, error)
            return
        delay = _BATCH_BACKOFF.delay(message.receive_count)
        _log.warning("batch_delayed", publish_id=str(body.publish_id), error=str(error))
        self.consumer.delay(message, delay)

    def _give_up(self, message: Message, body: BufferMessage, error: Exception) -> None:
        """Report the failure, then dead-letter the message. If the report fails, try again."""
        try:
            self._report_failure(body, error)
        except (Refused, Unreachable) as refusal:
            if not (isinstance(refusal, Refused) and refusal.refusal == "not_found"):
                _log.error("failure_not_reported", status=refusal.status, detail=refusal.detail)
                is_outage = refusal.status in _OUTAGE_STATUSES
                delay = _OUTAGE_DELAY if is_outage else _BATCH_BACKOFF.max_delay
                self.consumer.delay(message, delay, counted=not is_outage)
                return
        self.consumer.dead_letter(message)

    def _report_failure(self, body: BufferMessage, error: Exception) -> None:
        reported = error if isinstance(error, TraceError) else TraceError(str(error))
        self.client.buffer_complete(
            BufferComplete(
                publish_id=body.publish_id,
                status="Failed",
                error_code=reported.code,
                error_message=reported.detail.replace("\x00", "")[:8000],
            )
        )


def _table(batch: BufferBatch) -> BufferTable:
    columns = tuple((c.name, c.type, c.nullable) for c in batch.columns or ())
    name = hot_table(batch.dataset_uuid, batch.dataset_version)
    return BufferTable(name, batch.dataset_version, columns, tuple(batch.unique_key))
