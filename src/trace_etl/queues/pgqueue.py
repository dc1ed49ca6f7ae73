"""The queue in Postgres: a table of messages, and NOTIFY so that nobody polls hot."""

import re
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

_SCHEMA = """
DO $$ BEGIN
    -- IF NOT EXISTS would ask for a right that only the first run needs.
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
    -- ADD COLUMN IF NOT EXISTS would lock out everybody at every start.
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'queue.messages'::regclass
                      AND attname = 'bulk') THEN
        ALTER TABLE queue.messages ADD bulk boolean NOT NULL DEFAULT false;
    END IF;
END $$;
-- A hundred thousand wake-ups of a rebuild do not stand between a worker and what is urgent.
CREATE INDEX IF NOT EXISTS messages_urgent ON queue.messages (message_id) WHERE NOT bulk;
-- Who listens. A consumer is alive as long as the session it named is: when its process dies, by
-- whatever means, the session ends with it.
CREATE TABLE IF NOT EXISTS queue.consumers (
    queue          text NOT NULL,
    consumer_id    text NOT NULL,
    backend_pid    integer NOT NULL,
    backend_start  timestamptz NOT NULL,
    PRIMARY KEY (queue, consumer_id)
);
CREATE OR REPLACE VIEW queue.live_consumers AS
SELECT c.queue, c.consumer_id FROM queue.consumers c
  JOIN pg_stat_activity a ON a.pid = c.backend_pid AND a.backend_start = c.backend_start;
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('trace.queue', 0))"
CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


def migrate(dsn: str) -> None:
    """Make the queue's tables; many processes may try at once."""
    with psycopg.connect(dsn) as conn:
        conn.execute(_LOCK)
        conn.execute(_SCHEMA)


def channel(queue: str) -> str:
    """The NOTIFY channel of a queue. Raises ValueError for a name that is not a plain word."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,50}", queue):
        raise ValueError(f"not a queue name: {queue!r}")
    return f"queue_{queue}"


_SEND = """
WITH sent AS (
    INSERT INTO queue.messages (queue, body, bulk)
    SELECT q, b, %s FROM unnest(%s::text[], %s::jsonb[]) AS m (q, b)
)
SELECT pg_notify(c, '') FROM unnest(%s::text[]) AS c
"""
_CONNECTIONS = 4


class Producer:
    """The sending side, for services."""

    def __init__(self, dsn: str, *, patience: timedelta = timedelta(seconds=10)) -> None:
        self._pool: AsyncConnectionPool[AsyncConnection[tuple[Any, ...]]] = AsyncConnectionPool(
            dsn,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=_CONNECTIONS,
            open=False,
            reconnect_timeout=float("inf"),
            timeout=patience.total_seconds(),
            name="queue",
        )

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def send(self, messages: list[tuple[str, dict[str, Any]]], *, bulk: bool = False) -> None:
        """Put (queue, body) pairs in, and wake the listeners. `bulk` gives way to all the rest."""
        queues = [queue for queue, _ in messages]
        channels = [channel(queue) for queue in sorted(set(queues))]
        await self._run(_SEND, (bulk, queues, [Jsonb(body) for _, body in messages], channels))

    async def depth(self, queue: str) -> int:
        """How many messages wait or are being looked at."""
        rows = await self._run("SELECT count(*) FROM queue.messages WHERE queue = %s", (queue,))
        return rows[0][0]

    async def consumers(self, queue: str) -> list[str]:
        """Who listens to a queue."""
        query = "SELECT consumer_id FROM queue.live_consumers WHERE queue = %s"
        return [row[0] for row in await self._run(query, (queue,))]

    async def all_consumers(self) -> set[str]:
        """Who listens to any queue."""
        query = "SELECT consumer_id FROM queue.live_consumers"
        return {row[0] for row in await self._run(query, ())}

    async def _run(self, query: LiteralString, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """One statement. Doing it twice, should its answer be lost, does no harm.

        A restart of Postgres breaks the connections that rest: they are found out by their use,
        not by a question before each.
        """
        for left in reversed(range(_CONNECTIONS + 1)):
            try:
                async with self._pool.connection() as conn:
                    return await (await conn.execute(query, values)).fetchall()
            except PoolTimeout:
                raise  # nothing answers: it was waited for long enough
            except CONNECTION_LOST:
                if not left:
                    raise
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class Message:
    message_id: int
    queue: str
    body: dict[str, Any]
    receives: int


_RECEIVE = """
WITH urgent AS MATERIALIZED (
    SELECT message_id FROM queue.messages
     WHERE queue = ANY(%(queues)s::text[]) AND visible_at <= now() AND NOT bulk
     ORDER BY message_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), rest AS MATERIALIZED (
    SELECT message_id FROM queue.messages
     WHERE queue = ANY(%(queues)s::text[]) AND visible_at <= now() AND bulk
     ORDER BY message_id LIMIT %(limit)s - (SELECT count(*) FROM urgent) FOR UPDATE SKIP LOCKED
), next AS (
    SELECT message_id FROM urgent UNION ALL SELECT message_id FROM rest
)
UPDATE queue.messages m SET visible_at = now() + %(hidden)s, receives = m.receives + 1
  FROM next WHERE m.message_id = next.message_id
RETURNING m.message_id, m.queue, m.body, m.receives
"""
_ANNOUNCE = """
INSERT INTO queue.consumers (queue, consumer_id, backend_pid, backend_start)
SELECT q, %(consumer_id)s, pid, backend_start
  FROM unnest(%(queues)s::text[]) q, pg_stat_activity WHERE pid = pg_backend_pid()
ON CONFLICT (queue, consumer_id) DO UPDATE
   SET backend_pid = EXCLUDED.backend_pid, backend_start = EXCLUDED.backend_start
"""
_FORGET_DEAD = """
DELETE FROM queue.consumers c
 WHERE NOT EXISTS (SELECT FROM queue.live_consumers l WHERE l.consumer_id = c.consumer_id)
"""
_FORGET = "DELETE FROM queue.consumers WHERE consumer_id = %s"
_PUT_OFF = """
UPDATE queue.messages SET visible_at = now() + %s, receives = receives - %s WHERE message_id = %s
"""
_BURY = """
WITH dead AS (DELETE FROM queue.messages WHERE message_id = %s RETURNING body)
INSERT INTO queue.messages (queue, body) SELECT %s, body FROM dead
"""
_POLL_EVERY = 5.0
_STOP_EVERY = 0.5


class Consumer:
    """The receiving side, for one thread of a worker. Reconnects when Postgres comes back."""

    def __init__(self, dsn: str, queues: list[str], consumer_id: str) -> None:
        self._dsn = dsn
        self._queues = queues
        self._consumer_id = consumer_id
        self._conn: Connection[tuple[Any, ...]] | None = None

    def receive(self, *, limit: int, hidden: timedelta) -> list[Message]:
        """Take visible messages, hiding them from others for a while."""
        conn = self._connected()
        query = {"queues": self._queues, "limit": limit, "hidden": hidden}
        return [Message(*row) for row in conn.execute(_RECEIVE, query).fetchall()]

    def wait(self, stop: threading.Event) -> None:
        """Sleep until a message is announced, `stop` is set, or a slow poll is due."""
        until = time.monotonic() + _POLL_EVERY
        while not stop.is_set() and time.monotonic() < until:
            for _ in self._connected().notifies(timeout=_STOP_EVERY, stop_after=1):
                return

    def ack(self, message_ids: list[int]) -> None:
        """Remove messages for good."""
        self._connected().execute(
            "DELETE FROM queue.messages WHERE message_id = ANY(%s)", (message_ids,)
        )

    def put_off(self, message_id: int, pause: timedelta, *, counts: bool = True) -> None:
        """Show a message again after a while, as if it had not been received unless it `counts`."""
        self._connected().execute(_PUT_OFF, (pause, 0 if counts else 1, message_id))

    def bury(self, message_id: int, queue: str) -> None:
        """Move a message to a queue that nobody serves: people may look at it there."""
        self._connected().execute(_BURY, (message_id, queue))

    def close(self) -> None:
        if self._conn is not None and not self._conn.broken:
            self._conn.execute(_FORGET, (self._consumer_id,))
            self._conn.close()

    def _connected(self) -> Connection[tuple[Any, ...]]:
        if self._conn is None or self._conn.broken or self._conn.closed:
            # What is taken or removed and lost again is only seen once more: no wait for the disk.
            self._conn = psycopg.connect(
                self._dsn, autocommit=True, options="-c synchronous_commit=off"
            )
            for queue in self._queues:
                self._conn.execute(f'LISTEN "{channel(queue)}"'.encode())
            values = {"consumer_id": self._consumer_id, "queues": self._queues}
            self._conn.execute(_FORGET_DEAD)
            self._conn.execute(_ANNOUNCE, values)
        return self._conn


def wake_up_body(task_id: UUID) -> dict[str, Any]:
    """A wake-up carries the task's id and nothing else."""
    return {"task_id": str(task_id)}
