"""The sink: batches from the buffer queue into Postgres data, then the event to the Dispatcher."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog
from pydantic import ValidationError

from trace_etl.data import buffers, connection
from trace_etl.data.buffers import Shape, Stamp, Sunk
from trace_etl.data.errors import DataUnavailable
from trace_etl.model.errors import TraceError
from trace_etl.model.storage import hot_table
from trace_etl.queues.pgqueue import Consumer, Message
from trace_etl.wire.buffers import BufferBatch, BufferComplete, BufferMessage
from trace_etl.worker import batches
from trace_etl.worker.batches import BadBatch
from trace_etl.worker.client import DispatcherClient, Refused, Unreachable

QUEUE = "buffer"
DEAD = "buffer_dlq"
"""Where batches end that nobody could write; the Dispatcher keeps the reason."""
MOST_RECEIVES = 10
_HIDDEN = timedelta(minutes=5)
_LONGEST = timedelta(minutes=5)
_OUTAGE = timedelta(seconds=5)
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Sink:
    """Runs in a thread of a trusted worker; any number of them may run at once."""

    consumer: Consumer
    client: DispatcherClient
    data_dsn: str
    objects_root: Path
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
                self.stop.wait(min(5.0, 0.1 * 2 ** min(failures, 6)))

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
            if message.receives > MOST_RECEIVES:  # whoever took it died of it, every time
                raise BadBatch(f"was taken {MOST_RECEIVES} times and never settled")
            sunk = self._sink(told)
        except BadBatch as error:
            self._give_up(message, told, error)
            log.error("batch_refused", reason=error.detail)
        except Unreachable as error:  # not the batch's fault: it does not count
            _log.warning("batch_waits", publish_id=str(told.publish_id), error=str(error))
            self.consumer.put_off(message.message_id, _OUTAGE, counts=False)
        except Exception as error:  # whatever it is, its reason is kept and the next batch comes
            self._later(message, told, error)
        else:
            self.consumer.ack([message.message_id])
            log.info("batch_written", rows=sunk.row_count, cursor=sunk.cursor)

    def _sink(self, told: BufferMessage) -> Sunk:
        """Write a batch, once, and say so. Raises BadBatch, and what may pass."""
        try:
            batch = self.client.buffer_fetch(told.publish_id)
            sunk = self._written(batch)
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
            raise Unreachable(refusal.detail) from refusal  # ours to mend: a wrong token, say
        return sunk

    def _written(self, batch: BufferBatch) -> Sunk:
        with ExitStack() as stack:
            try:
                conn = stack.enter_context(connection.connect(self.data_dsn))
            except DataUnavailable as error:
                raise Unreachable(error.detail) from error
            if (done := buffers.known(conn, batch.publish_id)) is not None:
                return done
            rows = batches.read(batch, self.objects_root)
            with connection.transaction(conn):
                return buffers.write(conn, _shape(batch), _stamp(batch), rows)

    def _later(self, message: Message, told: BufferMessage, error: Exception) -> None:
        """Let somebody try again, ever later; in the end nobody does."""
        if message.receives >= MOST_RECEIVES:
            self._give_up(message, told, error)
            _log.error("batch_given_up", publish_id=str(told.publish_id), error=str(error))
            return
        pause = min(_LONGEST, timedelta(seconds=2 ** min(message.receives, 9)))
        _log.warning("batch_put_off", publish_id=str(told.publish_id), error=str(error))
        self.consumer.put_off(message.message_id, pause)

    def _give_up(self, message: Message, told: BufferMessage, error: Exception) -> None:
        known = error if isinstance(error, TraceError) else TraceError(str(error))
        try:
            self.client.buffer_complete(
                BufferComplete(
                    publish_id=told.publish_id,
                    status="Failed",
                    error_code=known.code,
                    error_message=known.detail.replace("\x00", "")[:8000],
                )
            )
        except Refused as refusal:
            _log.error("refusal_not_told", code=refusal.refusal, detail=refusal.detail)
        self.consumer.bury(message.message_id, DEAD)


def _shape(batch: BufferBatch) -> Shape:
    columns = tuple((c.name, c.type, c.nullable) for c in batch.columns or ())
    table = hot_table(batch.dataset_uuid, batch.dataset_version)
    return Shape(table, batch.dataset_version, columns, tuple(batch.unique_key))


def _stamp(batch: BufferBatch) -> Stamp:
    return Stamp(batch.publish_id, batch.publish_no, batch.org_id)
