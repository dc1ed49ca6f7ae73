"""Notifications: find what the rules of deployed DAGs ask for, once each, and record deliveries."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from trace_etl.api.user.notifications import NotificationItem
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all

# Only what happened since the deploy of the rule counts, so a new rule does not report old events.
_FIND_FAILURES = """
INSERT INTO notifications (org_id, dag_id, dag, rule, event, dedupe_key, body, url, secret)
SELECT r.org_id, r.dag_id, r.dag, r.name, r.event,
       concat_ws(':', f.task_id, extract(epoch FROM f.finished_at)),
       jsonb_build_object('job', j.name, 'task_id', f.task_id, 'partition_key', f.partition_key,
                          'error_code', f.error_code, 'error_message', left(f.error_message, 1000),
                          'occurred_at', f.finished_at), r.url, r.secret
  FROM notification_rules r JOIN jobs j ON j.dag_id = r.dag_id AND j.active
  JOIN job_failures f ON f.job_id = j.job_id
 WHERE r.event = 'failure' AND f.finished_at >= r.deployed_at
ON CONFLICT ON CONSTRAINT notifications_once DO NOTHING
"""
# A result is replaced by the next one for its partition, so each is found once.
_FIND_CHECKS = """
INSERT INTO notifications (org_id, dag_id, dag, rule, event, dedupe_key, body, url, secret)
SELECT r.org_id, r.dag_id, r.dag, r.name, r.event, c.result_id::text,
       jsonb_build_object('dataset', coalesce(c.dataset, concat_ws('.', c.dag, c.job, c.output)),
                          'partition_key', c.partition_key, 'check', c."check", 'kind', c.kind,
                          'on_failure', c.on_failure, 'failing_rows', c.failing_rows,
                          'checked_rows', c.checked_rows, 'samples', c.samples,
                          'message', c.message, 'task_id', c.task_id, 'occurred_at', c.checked_at),
       r.url, r.secret
  FROM notification_rules r JOIN jobs j ON j.dag_id = r.dag_id AND j.active
  JOIN check_details c ON c.job_id = j.job_id
 WHERE r.event = 'check' AND NOT c.passed AND c.checked_at >= r.deployed_at
   AND (r.datasets IS NULL OR c.dataset = ANY (r.datasets))
ON CONFLICT ON CONSTRAINT notifications_once DO NOTHING
"""
_FIND_LATE = """
INSERT INTO notifications (org_id, dag_id, dag, rule, event, dedupe_key, body, url, secret)
SELECT w.org_id, w.dag_id, w.dag, w.rule, w.event, concat_ws(':', w.dataset_uuid, c.last_at),
       jsonb_build_object('dataset', w.dataset, 'last_committed_at', c.last_at,
                          'after_seconds', w.after_seconds, 'occurred_at', now()), w.url, w.secret
  FROM watched_datasets w CROSS JOIN LATERAL (
       SELECT greatest(max(p.committed_at), w.deployed_at) AS last_at
         FROM partitions p WHERE p.dataset_version = w.dataset_version) c
 WHERE w.event = 'late' AND c.last_at < now() - make_interval(secs => w.after_seconds)
ON CONFLICT ON CONSTRAINT notifications_once DO NOTHING
"""
# A range that is still being built is no gap yet: the partition after it must be old enough.
_FIND_GAPS = """
INSERT INTO notifications (org_id, dag_id, dag, rule, event, dedupe_key, body, url, secret)
SELECT w.org_id, w.dag_id, w.dag, w.rule, w.event,
       concat_ws(':', w.dataset_version, g.first_block, g.last_block),
       jsonb_build_object('dataset', w.dataset, 'range_start', g.first_block,
                          'range_end', g.last_block, 'occurred_at', g.committed_at), w.url, w.secret
  FROM watched_datasets w CROSS JOIN LATERAL (
       SELECT reached + 1 AS first_block, range_start - 1 AS last_block, committed_at FROM (
           SELECT range_start, committed_at, lag(range_end) OVER (ORDER BY range_start) AS reached
             FROM partitions WHERE dataset_version = w.dataset_version AND range_start IS NOT NULL) p
        WHERE range_start > reached + 1
          AND committed_at < now() - make_interval(secs => w.after_seconds)
        ORDER BY 1 LIMIT 100) g
 WHERE w.event = 'gap'
ON CONFLICT ON CONSTRAINT notifications_once DO NOTHING
"""
# The outputs of a follower are invalidated together, so the key names its task, not a dataset.
_FIND_REORGANISATIONS = """
INSERT INTO notifications (org_id, dag_id, dag, rule, event, dedupe_key, body, url, secret)
SELECT DISTINCT ON (w.dag_id, w.rule, i.task_id, i.range_start, i.attempt, i.made_at)
       w.org_id, w.dag_id, w.dag, w.rule, w.event,
       concat_ws(':', i.task_id, i.attempt, i.range_start, extract(epoch FROM i.made_at)),
       jsonb_build_object('dataset', w.dataset, 'range_start', i.range_start, 'range_end', i.range_end,
                          'depth', i.range_end - i.range_start + 1, 'reason', i.reason,
                          'occurred_at', i.made_at), w.url, w.secret
  FROM watched_outputs w
  JOIN reorganisations i ON i.dataset_uuid = w.dataset_uuid AND i.made_at >= w.deployed_at
 WHERE i.range_end - i.range_start + 1 > w.deeper_than
 ORDER BY w.dag_id, w.rule, i.task_id, i.range_start, i.attempt, i.made_at, i.range_end DESC,
          w.is_published DESC, w.dataset
ON CONFLICT ON CONSTRAINT notifications_once DO NOTHING
"""


async def find_new(conn: Conn) -> int:
    """Record what the rules ask for and was not recorded before. Returns how many."""
    found = 0
    for statement in (_FIND_FAILURES, _FIND_CHECKS, _FIND_LATE, _FIND_GAPS, _FIND_REORGANISATIONS):
        found += (await conn.execute(statement)).rowcount
    return found


@dataclass(frozen=True)
class DueNotification:
    """A notification that this replica delivers."""

    notification_id: UUID
    org_id: UUID
    dag: str
    rule: str
    event: str
    body: dict[str, Any]
    url: str
    secret: str
    tries: int


_LEASE = """
WITH due AS (
    SELECT notification_id FROM notifications
     WHERE sent_at IS NULL AND failed_at IS NULL AND next_try_at <= now()
     ORDER BY next_try_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE notifications n SET tries = n.tries + 1, next_try_at = now() + %(hold)s
  FROM due WHERE n.notification_id = due.notification_id
RETURNING n.notification_id, n.org_id, n.dag, n.rule, n.event, n.body, n.url, n.secret, n.tries
"""


async def lease(conn: Conn, *, limit: int, hold: timedelta) -> list[DueNotification]:
    """Lease due notifications for `hold`. If the caller dies, they are due again after that time."""
    return await fetch_all(conn, DueNotification, _LEASE, {"limit": limit, "hold": hold})


_RECORD_SENT = """
UPDATE notifications SET sent_at = now(), last_error = NULL WHERE notification_id = %(id)s
"""
_RECORD_FAILURE = """
UPDATE notifications
   SET last_error = %(error)s, next_try_at = now() + %(retry_after)s,
       failed_at = CASE WHEN tries >= %(max_tries)s THEN now() END
 WHERE notification_id = %(id)s AND sent_at IS NULL
"""


async def record_sent(conn: Conn, notification_id: UUID) -> None:
    """Record that the receiver accepted a notification."""
    await conn.execute(_RECORD_SENT, {"id": notification_id})


async def record_failure(
    conn: Conn, notification_id: UUID, *, error: str, retry_after: timedelta, max_tries: int
) -> None:
    """Delay a notification until its next try. After the last try, it has failed."""
    values = {"error": error, "retry_after": retry_after, "max_tries": max_tries}
    await conn.execute(_RECORD_FAILURE, {"id": notification_id, **values})


_LIST = """
SELECT notification_id, dag, rule, event, body AS detail, url, tries, created_at, sent_at, failed_at,
       CASE WHEN sent_at IS NULL AND failed_at IS NULL THEN next_try_at END AS next_try_at, last_error
  FROM notifications
 WHERE org_id = %(org_id)s AND (%(dag)s::text IS NULL OR dag = %(dag)s)
 ORDER BY created_at DESC, notification_id DESC LIMIT %(limit)s
"""


async def list_notifications(
    conn: Conn, org_id: UUID, *, dag: str | None, limit: int
) -> list[NotificationItem]:
    """List the newest notifications of an organisation."""
    values = {"org_id": org_id, "dag": dag, "limit": limit}
    return await fetch_all(conn, NotificationItem, _LIST, values)


# A notification of an event that can still be found again would be sent again: keep it long enough.
_DELETE_OLD = """
DELETE FROM notifications WHERE notification_id IN (
    SELECT notification_id FROM notifications
     WHERE coalesce(sent_at, failed_at) < now() - %(older_than)s AND NOT EXISTS (
           SELECT FROM dags g WHERE g.dag_id = notifications.dag_id AND g.dag_version IS NOT NULL)
     LIMIT %(limit)s)
"""


async def delete_old(conn: Conn, *, older_than: timedelta, limit: int) -> int:
    """Delete ended notifications of removed DAGs."""
    values = {"older_than": older_than, "limit": limit}
    return (await conn.execute(_DELETE_OLD, values)).rowcount
