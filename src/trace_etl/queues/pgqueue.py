"""A queue service in Postgres: one table of messages, and NOTIFY to wake waiting consumers."""

import re
import threading
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, Connection, sql
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from trace_etl.queues.queue import (
    MAX_RECEIVES,
    InvalidQueueName,
    Message,
    QueueDepth,
    QueueUnavailable,
    dead_letter_queue,
)

_SCHEMA = """
DO $$ BEGIN
    -- IF NOT EXISTS would require the CREATE privilege on every run, not only on the first.
    IF to_regnamespace('queue') IS NULL THEN CREATE SCHEMA queue; END IF;
END $$;
CREATE TABLE IF NOT EXISTS queue.messages (
    message_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue        text NOT NULL,
    body         jsonb NOT NULL,
    visible_at   timestamptz NOT NULL DEFAULT now(),
    receives     integer NOT NULL DEFAULT 0,
    enqueued_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX IF NOT EXISTS messages_visible ON queue.messages (queue, visible_at, message_id);
DO $$ BEGIN
    -- ADD COLUMN IF NOT EXISTS would take an exclusive lock at every start.
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'queue.messages'::regclass
                      AND attname = 'bulk') THEN
        ALTER TABLE queue.messages ADD bulk boolean NOT NULL DEFAULT false;
    END IF;
END $$;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'queue.messages'::regclass
                      AND attname = 'turn') THEN
        ALTER TABLE queue.messages ADD group_key text, ADD turn bigint NOT NULL DEFAULT 0;
        DROP INDEX IF EXISTS queue.messages_urgent;
    END IF;
END $$;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'queue.messages'::regclass
                      AND attname = 'position') THEN
        ALTER TABLE queue.messages ADD position bigint;
    END IF;
END $$;
-- Lets a worker find urgent messages behind a hundred thousand bulk messages of a rebuild.
CREATE INDEX IF NOT EXISTS messages_in_turn ON queue.messages (bulk, turn, message_id);
CREATE INDEX IF NOT EXISTS messages_of_group ON queue.messages (group_key, bulk, turn)
 WHERE group_key IS NOT NULL;
-- A consumer is alive while the database session that it registered is open: the session ends
-- with its process, even if the process is killed.
CREATE TABLE IF NOT EXISTS queue.consumers (
    queue          text NOT NULL,
    consumer_id    text NOT NULL,
    backend_pid    integer NOT NULL,
    backend_start  timestamptz NOT NULL,
    PRIMARY KEY (queue, consumer_id)
);
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'queue.consumers'::regclass
                      AND attname = 'lost_at') THEN
        ALTER TABLE queue.consumers ADD lost_at timestamptz;
    END IF;
END $$;
CREATE OR REPLACE VIEW queue.live_consumers AS
SELECT c.queue, c.consumer_id FROM queue.consumers c
  JOIN pg_stat_activity a ON a.pid = c.backend_pid AND a.backend_start = c.backend_start;
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.queue', 0))"
_CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)
# A crash may lose a message or deliver it twice. Neither does harm.
_NO_WAIT_FOR_DISK = "-c synchronous_commit=off"


def create_schema(admin_dsn: str, *, owner: str) -> None:
    """Create the queue's schema for a role that may not create one itself."""
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        conn.execute("SET client_min_messages = warning")
        create = sql.SQL("CREATE SCHEMA IF NOT EXISTS queue AUTHORIZATION {}")
        conn.execute(create.format(sql.Identifier(owner)))


@dataclass(frozen=True)
class PgQueue:
    """The queue service in the `queue` schema of one database."""

    dsn: str

    def prepare(self) -> None:
        with _raise_unavailable(), psycopg.connect(self.dsn) as conn:
            conn.execute(_LOCK)
            conn.execute(_SCHEMA)

    @asynccontextmanager
    async def producer(self, *, call_timeout: timedelta) -> AsyncGenerator["PgProducer"]:
        pool = _make_pool(self.dsn, call_timeout)
        async with pool:
            yield PgProducer(pool)

    def consumer(self, queues: Sequence[str], consumer_id: str) -> "PgConsumer":
        return PgConsumer(self.dsn, queues, consumer_id)


@contextmanager
def _raise_unavailable() -> Generator[None]:
    try:
        yield
    except _CONNECTION_LOST as error:
        raise QueueUnavailable(f"the queue does not answer: {error}") from error


def _name_channel(queue: str) -> str:
    """Return the NOTIFY channel of a queue. Raises InvalidQueueName."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,56}", queue):
        raise InvalidQueueName(
            f"{queue!r} is not a queue name: use up to 57 lowercase letters, digits and underscores"
        )
    return f"queue_{queue}"


# Groups take turns. The messages of a group have consecutive turns. They begin after the turn of the
# group's last message, and not before the turn that is received next. Messages whose position is before
# that of the group's last message are late: they are a group of their own.
_SEND = """
WITH given AS MATERIALIZED (
    SELECT m.* FROM unnest(%(queues)s::text[], %(bodies)s::jsonb[], %(groups)s::text[],
                           %(positions)s::bigint[])
      WITH ORDINALITY AS m (q, b, g, p, n)
), last AS MATERIALIZED (
    SELECT g, (SELECT m.position FROM queue.messages m
                WHERE m.group_key = g AND m.bulk = %(bulk)s ORDER BY m.turn DESC LIMIT 1) AS p
      FROM (SELECT DISTINCT g FROM given WHERE p IS NOT NULL) groups
), chosen AS MATERIALIZED (
    SELECT s.q, s.b, s.p, s.n, CASE WHEN s.p < l.p THEN s.g || ':late' ELSE s.g END AS g
      FROM given s LEFT JOIN last l ON l.g = s.g
), sending AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY g ORDER BY p, n) AS place FROM chosen
), next AS (
    SELECT coalesce((SELECT turn - 1 FROM queue.messages
                      WHERE bulk = %(bulk)s AND turn > 0 AND visible_at <= now()
                      ORDER BY turn LIMIT 1), 0) AS turn
), begins AS MATERIALIZED (
    SELECT g, greatest(next.turn, (SELECT max(m.turn) FROM queue.messages m
                                    WHERE m.group_key = g AND m.bulk = %(bulk)s)) AS turn
      FROM (SELECT DISTINCT g FROM sending WHERE g IS NOT NULL) groups CROSS JOIN next
), sent AS (
    INSERT INTO queue.messages (queue, body, bulk, group_key, position, turn)
    SELECT s.q, s.b, %(bulk)s, s.g, s.p, coalesce(t.turn + s.place, 0)
      FROM sending s LEFT JOIN begins t ON t.g = s.g ORDER BY s.n
)
SELECT pg_notify(c, '') FROM unnest(%(channels)s::text[]) AS c
"""
_DEPTH = """
SELECT count(*) FILTER (WHERE visible_at <= now()),
       count(*) FILTER (WHERE visible_at > now()),
       now() - min(enqueued_at)
  FROM queue.messages WHERE queue = %s
"""
_CONSUMERS = "SELECT consumer_id FROM queue.live_consumers WHERE queue = coalesce(%s, queue)"
_LOST_CONSUMERS = """
SELECT consumer_id FROM queue.consumers EXCEPT SELECT consumer_id FROM queue.live_consumers
"""
_CONNECTIONS = 4
_Pool = AsyncConnectionPool[AsyncConnection[tuple[Any, ...]]]


def _make_pool(dsn: str, timeout: timedelta) -> _Pool:
    return AsyncConnectionPool(
        dsn,
        kwargs={"autocommit": True, "options": _NO_WAIT_FOR_DISK},
        min_size=1,
        max_size=_CONNECTIONS,
        open=False,
        reconnect_timeout=float("inf"),
        timeout=timeout.total_seconds(),
        name="queue",
    )


@dataclass(frozen=True)
class PgProducer:
    """Sends messages through a small connection pool."""

    _pool: _Pool

    async def send(
        self,
        messages: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        groups: Sequence[str | None] | None = None,
        positions: Sequence[int | None] | None = None,
        bulk: bool = False,
    ) -> None:
        queues = [queue for queue, _ in messages]
        values = {
            "queues": queues,
            "bodies": [Jsonb(body) for _, body in messages],
            "groups": list(groups) if groups is not None else [None] * len(messages),
            "positions": list(positions) if positions is not None else [None] * len(messages),
            "bulk": bulk,
            "channels": [_name_channel(queue) for queue in sorted(set(queues))],
        }
        await self._execute(_SEND, values)

    async def depth(self, queue: str) -> QueueDepth:
        return QueueDepth(*(await self._execute(_DEPTH, (queue,)))[0])

    async def consumers(self, queue: str | None = None) -> set[str]:
        return {row[0] for row in await self._execute(_CONSUMERS, (queue,))}

    async def lost_consumers(self) -> set[str]:
        return {row[0] for row in await self._execute(_LOST_CONSUMERS, ())}

    async def _execute(
        self, query: LiteralString, values: tuple[Any, ...] | Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Run one statement. It must be safe to repeat: its answer may get lost.

        A restart of Postgres breaks all pooled connections. Each try discards one of them, which is
        cheaper than checking a connection before every use.
        """
        with _raise_unavailable():
            for tries_left in reversed(range(_CONNECTIONS + 1)):
                try:
                    async with self._pool.connection() as conn:
                        return await (await conn.execute(query, values)).fetchall()
                except PoolTimeout:
                    raise
                except _CONNECTION_LOST:
                    if not tries_left:
                        raise
        raise AssertionError("unreachable")


_RECEIVE = """
WITH urgent AS MATERIALIZED (
    SELECT message_id FROM queue.messages
     WHERE queue = ANY(%(queues)s::text[]) AND visible_at <= now() AND NOT bulk
     ORDER BY turn, message_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), rest AS MATERIALIZED (
    SELECT message_id FROM queue.messages
     WHERE queue = ANY(%(queues)s::text[]) AND visible_at <= now() AND bulk
     ORDER BY turn, message_id LIMIT %(limit)s - (SELECT count(*) FROM urgent) FOR UPDATE SKIP LOCKED
), next AS (
    SELECT message_id FROM urgent UNION ALL SELECT message_id FROM rest
)
UPDATE queue.messages m SET visible_at = now() + %(visibility)s, receives = m.receives + 1
  FROM next WHERE m.message_id = next.message_id
RETURNING m.queue, m.body, m.message_id || '.' || m.receives, m.receives
"""
_EXTEND = """
UPDATE queue.messages SET visible_at = now() + %s WHERE message_id = %s AND receives = %s
"""
_DELAY_UNCOUNTED = """
UPDATE queue.messages SET visible_at = now() + %s, receives = receives - 1
 WHERE message_id = %s AND receives = %s
"""
_DELETE = """
DELETE FROM queue.messages m USING unnest(%s::bigint[], %s::integer[]) AS d (message_id, receives)
 WHERE m.message_id = d.message_id AND m.receives = d.receives
"""
_DEAD_LETTER = """
WITH dead AS (DELETE FROM queue.messages WHERE message_id = %s AND receives = %s RETURNING body)
INSERT INTO queue.messages (queue, body) SELECT %s, body FROM dead
"""
_REGISTER = """
INSERT INTO queue.consumers (queue, consumer_id, backend_pid, backend_start)
SELECT q, %(consumer_id)s, pid, backend_start
  FROM unnest(%(queues)s::text[]) q, pg_stat_activity WHERE pid = pg_backend_pid()
ON CONFLICT (queue, consumer_id) DO UPDATE
   SET backend_pid = EXCLUDED.backend_pid, backend_start = EXCLUDED.backend_start, lost_at = NULL
"""
# A lost consumer is listed for a day: the leases of its tasks end earlier.
_FORGET_LOST = """
WITH lost AS (
    UPDATE queue.consumers c SET lost_at = now()
     WHERE lost_at IS NULL
       AND NOT EXISTS (SELECT FROM queue.live_consumers l WHERE l.consumer_id = c.consumer_id)
)
DELETE FROM queue.consumers WHERE lost_at < now() - interval '1 day'
"""
_UNREGISTER = "DELETE FROM queue.consumers WHERE consumer_id = %s"
# A message whose visibility timeout ends is not announced: a waiting consumer polls for it.
_POLL_SECONDS = 5.0
_CHECK_STOP_SECONDS = 0.5


class PgConsumer:
    """Receives and waits on one connection, and settles messages on a second one.

    A thread that waits for a NOTIFY holds its connection, so another thread could not delete a
    message meanwhile. Both connections are opened on first use and again after they break.
    """

    def __init__(self, dsn: str, queues: Sequence[str], consumer_id: str) -> None:
        self._dsn = dsn
        self._queues = list(queues)
        self._consumer_id = consumer_id
        self._listening: Connection[tuple[Any, ...]] | None = None
        self._settling: Connection[tuple[Any, ...]] | None = None
        self._settling_lock = threading.Lock()

    def receive(
        self,
        *,
        limit: int,
        visibility: timedelta,
        wait: timedelta = timedelta(0),
        stop: threading.Event | None = None,
        queues: Sequence[str] | None = None,
    ) -> list[Message]:
        chosen = self._queues if queues is None else list(queues)
        deadline = time.monotonic() + wait.total_seconds()
        with _raise_unavailable():
            while True:
                messages = self._receive_now(chosen, limit, visibility)
                seconds_left = deadline - time.monotonic()
                if messages or seconds_left <= 0 or (stop is not None and stop.is_set()):
                    return messages
                self._wait(min(seconds_left, _POLL_SECONDS), stop)

    def stay_connected(self) -> None:
        with _raise_unavailable():
            self._listen().execute("SELECT")

    def extend(self, message: Message, visibility: timedelta) -> None:
        self._settle(_EXTEND, visibility, *_parse_receipt(message))

    def delay(self, message: Message, delay: timedelta, *, counted: bool = True) -> None:
        self._settle(_EXTEND if counted else _DELAY_UNCOUNTED, delay, *_parse_receipt(message))

    def delete(self, *messages: Message) -> None:
        ids, receives = zip(*map(_parse_receipt, messages), strict=True)
        self._settle(_DELETE, list(ids), list(receives))

    def dead_letter(self, message: Message) -> None:
        self._settle(_DEAD_LETTER, *_parse_receipt(message), dead_letter_queue(message.queue))

    def close(self) -> None:
        if self._listening is not None and not self._listening.closed:
            self._listening.execute(_UNREGISTER, (self._consumer_id,))
            self._listening.close()
        if self._settling is not None:
            self._settling.close()

    def _receive_now(self, queues: list[str], limit: int, visibility: timedelta) -> list[Message]:
        values = {"queues": queues, "limit": limit, "visibility": visibility}
        rows = self._listen().execute(_RECEIVE, values).fetchall()
        messages = [Message(*row) for row in rows]
        for message in messages:
            if message.receive_count > MAX_RECEIVES:
                self.dead_letter(message)
        return [message for message in messages if message.receive_count <= MAX_RECEIVES]

    def _wait(self, seconds: float, stop: threading.Event | None) -> None:
        """Wait for a NOTIFY, for `stop`, or until the time is over."""
        deadline = time.monotonic() + seconds
        while (seconds_left := deadline - time.monotonic()) > 0 and not (stop and stop.is_set()):
            timeout = min(seconds_left, _CHECK_STOP_SECONDS)
            for _ in self._listen().notifies(timeout=timeout, stop_after=1):
                return

    def _settle(self, query: LiteralString, *values: object) -> None:
        with _raise_unavailable(), self._settling_lock:
            if self._settling is None or self._settling.closed:
                self._settling = self._connect()
            self._settling.execute(query, values)

    def _listen(self) -> Connection[tuple[Any, ...]]:
        if self._listening is None or self._listening.closed:
            conn = self._connect()
            for queue in self._queues:
                conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(_name_channel(queue))))
            conn.execute(_FORGET_LOST)
            values = {"consumer_id": self._consumer_id, "queues": self._queues}
            conn.execute(_REGISTER, values)
            self._listening = conn
        return self._listening

    def _connect(self) -> Connection[tuple[Any, ...]]:
        return psycopg.connect(self._dsn, autocommit=True, options=_NO_WAIT_FOR_DISK)


def _parse_receipt(message: Message) -> tuple[int, int]:
    """Return the message id and the number of the delivery. A newer delivery makes older receipts invalid."""
    message_id, _, receives = message.receipt.partition(".")
    return int(message_id), int(receives)
