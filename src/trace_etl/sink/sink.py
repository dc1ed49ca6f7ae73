"""The sink: batches from the buffer queue into Postgres data, then the event to the Dispatcher."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import structlog
from pydantic import ValidationError

from trace_etl.api.messages import BufferMessage
from trace_etl.api.task.buffers import BufferBatch, BufferComplete
from trace_etl.data import buffers, connection
from trace_etl.data.buffers import Shape, Stamp, Sunk
from trace_etl.data.errors import DataUnavailable
from trace_etl.http.dispatcher_client import DispatcherClient, Refused, Unreachable
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import hot_table
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.retry import Backoff
from trace_etl.queues.pgqueue import Consumer, Message
from trace_etl.sink import batch_files
from trace_etl.sink.batch_files import BadBatch

QUEUE = "buffer"
DEAD = "buffer_dlq"
"""Where batches end that nobody could write; the Dispatcher keeps the reason."""
MOST_RECEIVES = 10
_HIDDEN = timedelta(minutes=5)
_BATCH_BACKOFF = Backoff(timedelta(seconds=2), timedelta(minutes=5))
_FAILURE_BACKOFF = Backoff.of_seconds(0.2, 5)
_OUTAGE = timedelta(seconds=5)
_NOT_THE_BATCH = {None, 401, 429, 502, 503, 504}
"""Answers that say nothing about a batch: none at all, a token that was just rotated, an outage."""
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Sink:
    """Runs in a thread of a trusted worker; any number of them may run at once."""

    consumer: Consumer
    client: DispatcherClient
    data_dsn: str
    objects: ObjectStore
    stop: threading.Event

    def run(self) -> None:
        """Write batches until asked to stop."""
        failures = 0
        while not self.stop.is_set():
            try:
                if not self.sink_once():
                    self.consumer.wait(self.stop)
                failures = 0
            except Exception as error:  # a thread that ends here would end unseen
                failures += 1
                _log.warning("sink_waits", failures=failures, error=repr(error))
                self.stop.wait(_FAILURE_BACKOFF.seconds(failures))

    def sink_once(self) -> int:
        """Take one message and settle it. How many there were."""
        messages = self.consumer.receive(limit=1, hidden=_HIDDEN)
        for message in messages:
            self._settle(message)
        return len(messages)

    def _settle(self, message: Message) -> None:
        try:
            told = BufferMessage.model_validate(
                {name: message.body.get(name) for name in BufferMessage.model_fields}
            )
        except ValidationError as error:
            _log.error("not_a_batch", message_id=message.message_id, error=str(error))
            self.consumer.bury(message.message_id, DEAD)
            return
        log = _log.bind(publish_id=str(told.publish_id), receives=message.receives)
        try:
            sunk = self._sink(told, message.receives)
        except BadBatch as error:
            log.error("batch_refused", reason=error.detail)
            self._give_up(message, told, error)
        except (Refused, Unreachable) as error:
            self._unheard(message, told, error)
        except Exception as error:  # whatever it is, its reason is kept and the next batch comes
            self._later(message, told, error)
        else:
            self.consumer.ack([message.message_id])
            log.info("batch_written", rows=sunk.row_count, cursor=sunk.cursor)

    def _sink(self, told: BufferMessage, receives: int) -> Sunk:
        """Write a batch, once, and say so. Raises BadBatch, and what may pass."""
        try:
            batch = self.client.buffer_fetch(told.publish_id)
            sunk = self._written(batch, receives)
            self.client.buffer_complete(
                BufferComplete(
                    publish_id=batch.publish_id,
                    status="Completed",
                    row_count=sunk.row_count,
                    cursor=sunk.cursor,
                )
            )
        except Refused as refusal:
            if refusal.refusal == "not_found":
                raise BadBatch("nobody knows of this batch any more") from refusal
            raise
        return sunk

    def _written(self, batch: BufferBatch, receives: int = 1) -> Sunk:
        with ExitStack() as stack:
            try:
                conn = stack.enter_context(connection.connect(self.data_dsn))
            except DataUnavailable as error:
                raise Unreachable(error.detail) from error
            if (done := buffers.known(conn, batch.publish_id)) is not None:
                return done
            if receives > MOST_RECEIVES:  # whoever took it died of it, every time
                raise BadBatch(f"was taken {MOST_RECEIVES} times and never settled")
            rows = batch_files.read(batch, self.objects)
            with connection.transaction(conn):
                return buffers.write(conn, _shape(batch), _stamp(batch), rows)

    def _unheard(self, message: Message, told: BufferMessage, error: Refused | Unreachable) -> None:
        """Only what is nobody's fault may go on for ever: all else counts, and ends."""
        if error.status not in _NOT_THE_BATCH:
            self._later(message, told, error)
            return
        _log.warning("batch_waits", publish_id=str(told.publish_id), error=str(error))
        self.consumer.put_off(message.message_id, _OUTAGE, counts=False)

    def _later(self, message: Message, told: BufferMessage, error: Exception) -> None:
        """Let somebody try again, ever later; in the end nobody does."""
        if message.receives >= MOST_RECEIVES:
            _log.error("batch_given_up", publish_id=str(told.publish_id), error=str(error))
            self._give_up(message, told, error)
            return
        pause = _BATCH_BACKOFF.delay(message.receives)
        _log.warning("batch_put_off", publish_id=str(told.publish_id), error=str(error))
        self.consumer.put_off(message.message_id, pause)

    def _give_up(self, message: Message, told: BufferMessage, error: Exception) -> None:
        """Bury a message whose end is on record, or that nobody knows of; else it comes back."""
        try:
            self._report_failed(told, error)
        except (Refused, Unreachable) as refusal:
            if not (isinstance(refusal, Refused) and refusal.refusal == "not_found"):
                _log.error("failure_not_told", status=refusal.status, detail=refusal.detail)
                is_outage = refusal.status in _NOT_THE_BATCH
                pause = _OUTAGE if is_outage else _BATCH_BACKOFF.max_delay
                self.consumer.put_off(message.message_id, pause, counts=not is_outage)
                return
        self.consumer.bury(message.message_id, DEAD)

    def _report_failed(self, told: BufferMessage, error: Exception) -> None:
        known = error if isinstance(error, TraceError) else TraceError(str(error))
        self.client.buffer_complete(
            BufferComplete(
                publish_id=told.publish_id,
                status="Failed",
                error_code=known.code,
                error_message=known.detail.replace("\x00", "")[:8000],
            )
        )


def _shape(batch: BufferBatch) -> Shape:
    columns = tuple((c.name, c.type, c.nullable) for c in batch.columns or ())
    table = hot_table(batch.dataset_uuid, batch.dataset_version)
    return Shape(table, batch.dataset_version, columns, tuple(batch.unique_key))


def _stamp(batch: BufferBatch) -> Stamp:
    return Stamp(batch.publish_id, batch.publish_no, batch.org_id)
