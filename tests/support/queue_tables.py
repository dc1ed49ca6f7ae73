"""Direct access to the tables of `PgQueue`. Tests use these tables only through this module."""

import json
from collections.abc import Mapping
from typing import Any

from support.services.postgres import sql

MESSAGES = "SELECT queue, body FROM queue.messages ORDER BY message_id"


def bodies(dsn: str, queue: str) -> list[dict[str, Any]]:
    """Return the bodies of a queue's messages, oldest first."""
    return [body for name, body in sql(dsn, MESSAGES) if name == queue]


def count(dsn: str) -> int:
    return len(sql(dsn, MESSAGES))


def bulk_flags(dsn: str) -> dict[str | None, bool]:
    """Return whether each task's wake-up is a bulk message."""
    return dict(sql(dsn, "SELECT body ->> 'task_id', bulk FROM queue.messages"))


def send(dsn: str, queue: str, body: Mapping[str, Any]) -> None:
    query = "INSERT INTO queue.messages (queue, body) VALUES (%s, %s)"
    sql(dsn, query, (queue, json.dumps(body)))


def delete_all(dsn: str) -> None:
    sql(dsn, "DELETE FROM queue.messages")


def delete_batch(dsn: str, publish_id: str) -> int:
    """Delete the messages of a batch. Returns how many there were."""
    query = "DELETE FROM queue.messages WHERE body ->> 'publish_id' = %s RETURNING 1"
    return len(sql(dsn, query, (publish_id,)))


def batch_receives(dsn: str, queue: str, publish_id: str) -> list[int]:
    """Return how often each message of a batch was received."""
    query = "SELECT receives FROM queue.messages WHERE queue = %s AND body ->> 'publish_id' = %s"
    return [receives for (receives,) in sql(dsn, query, (queue, publish_id))]


def set_batch_receives(dsn: str, publish_id: str, receives: int) -> None:
    query = """UPDATE queue.messages SET receives = %s, visible_at = now()
                WHERE body ->> 'publish_id' = %s"""
    sql(dsn, query, (receives, publish_id))


def show_all(dsn: str) -> None:
    """Make every hidden message visible."""
    sql(dsn, "UPDATE queue.messages SET visible_at = now()")


def hide_oldest(dsn: str, queue: str) -> None:
    query = """UPDATE queue.messages SET visible_at = now() + interval '1 hour'
                WHERE message_id = (SELECT min(message_id) FROM queue.messages WHERE queue = %s)"""
    sql(dsn, query, (queue,))


def add_hidden(dsn: str, queue: str, messages: int) -> None:
    """Add many messages that stay hidden for a day."""
    query = """INSERT INTO queue.messages (queue, body, visible_at)
               SELECT %s, '{}', now() + interval '1 day' FROM generate_series(1, %s)"""
    sql(dsn, query, (queue, messages))
    sql(dsn, "VACUUM ANALYZE queue.messages")


def disable(dsn: str) -> None:
    """Make every queue call fail until `enable`, while Postgres keeps answering."""
    sql(dsn, "ALTER TABLE queue.messages RENAME TO disabled")


def enable(dsn: str) -> None:
    sql(dsn, "ALTER TABLE queue.disabled RENAME TO messages")


def seconds_until_visible(dsn: str) -> list[float]:
    """Return for each hidden message how long it stays hidden."""
    query = """SELECT extract(epoch FROM visible_at - now())::float FROM queue.messages
                WHERE visible_at > now() ORDER BY 1"""
    return [seconds for (seconds,) in sql(dsn, query)]
