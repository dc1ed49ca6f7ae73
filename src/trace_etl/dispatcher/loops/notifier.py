"""Find notifications that the rules of DAGs ask for, and deliver them as signed webhooks."""

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import timedelta

import httpx
import structlog

from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets, sign
from trace_etl.policy.retry import OUTBOX_RETRY
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.feed import notifications
from trace_etl.state.feed.notifications import DueNotification

_TIMEOUT = 10.0  # seconds for a whole delivery
_HOLD = timedelta(minutes=1)
_log = structlog.stdlib.get_logger()


class NotDelivered(Exception):
    """The receiver did not accept a notification."""


@dataclass(frozen=True)
class Notifier:
    pool: Pool
    secrets: WebhookSecrets
    batch_size: int
    max_tries: int

    async def notify_once(self) -> int:
        """Find new notifications and deliver one bounded batch. Safe on every replica at once."""
        async with transaction(self.pool) as conn:
            found = await notifications.find_new(conn)
        async with self.pool.connection() as conn:
            due = await notifications.lease(conn, limit=self.batch_size, hold=_HOLD)
        if due:
            async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as http:
                await asyncio.gather(*(self._deliver(http, item) for item in due))
        return found + len(due)

    async def _deliver(self, http: httpx.AsyncClient, item: DueNotification) -> None:
        try:
            await self._send_in_time(http, item)
        # A host name that cannot be encoded is a UnicodeError.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, NotDelivered) as error:
            reason = str(error) or type(error).__name__
            _log.warning("notification_failed", notification_id=item.notification_id, error=reason)
            async with self.pool.connection() as conn:
                await notifications.record_failure(
                    conn,
                    item.notification_id,
                    error=reason[:500],
                    retry_after=OUTBOX_RETRY.delay(item.tries),
                    max_tries=self.max_tries,
                )
            return
        async with self.pool.connection() as conn:
            await notifications.record_sent(conn, item.notification_id)
        _log.info("notification_sent", notification_id=item.notification_id, rule=item.rule)

    async def _send_in_time(self, http: httpx.AsyncClient, item: DueNotification) -> None:
        """Send within the timeout: a receiver that answers byte by byte must not stop the others."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._send(http, item)
        except TimeoutError as error:
            raise NotDelivered(f"the receiver did not answer within {_TIMEOUT:g} s") from error

    async def _send(self, http: httpx.AsyncClient, item: DueNotification) -> None:
        secret = self.secrets.find(item.org_id, item.secret)
        if secret is None:
            raise NotDelivered(f"the secret {item.secret!r} is missing or empty; set it")
        content = json.dumps(
            {
                "notification_id": str(item.notification_id),
                "dag": item.dag,
                "rule": item.rule,
                "event": item.event,
                "detail": item.body,
            }
        ).encode()
        timestamp, delivery = str(int(time.time())), str(item.notification_id)
        headers = {
            "Content-Type": "application/json",
            "X-Trace-Timestamp": timestamp,
            "X-Trace-Delivery": delivery,
            "X-Trace-Signature": sign(
                content, secret, timestamp, delivery, f"{item.org_id}/{item.dag}/{item.rule}"
            ),
        }
        # The body of the answer is not read: it may be endless.
        async with http.stream("POST", item.url, content=content, headers=headers) as reply:
            if not reply.is_success:
                raise NotDelivered(f"the receiver answered {reply.status_code}")
