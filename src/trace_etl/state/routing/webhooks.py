"""Record webhook deliveries. Each delivery is one event of its source, or one task of its function."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.model.errors import Conflict, NotFound
from trace_etl.policy.webhook_scope import WebhookScope
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_one
from trace_etl.state.routing import source_tasks


@dataclass(frozen=True)
class WebhookSource:
    """A deployed source that receives webhook deliveries."""

    org_id: UUID
    job_id: UUID
    revision_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    options: dict[str, Any]
    bulk: bool
    has_function: bool
    deferred_by: str | None


_FIND_SOURCE = """
SELECT j.org_id, j.job_id, j.revision_id, o.dataset_uuid, o.dataset_version,
       r.source -> 'options' AS options, r.priority = 'bulk' AS bulk,
       r.udf ->> 'sha256' IS NOT NULL AS has_function,
       coalesce(j.paused_by, CASE WHEN r.priority = 'bulk' THEN j.bulk_paused_by END)
           AS deferred_by
  FROM orgs x JOIN dags g USING (org_id) JOIN jobs j USING (dag_id)
  JOIN job_revisions r USING (revision_id)
  JOIN job_outputs o ON o.revision_id = r.revision_id AND o.output_index = 0
 WHERE (x.name = %(org)s OR x.org_id::text = %(org)s) AND g.name = %(dag)s AND j.name = %(job)s
   AND j.active AND r.source ->> 'kind' = 'webhook'
"""


async def find_source(conn: Conn, org: str, dag: str, job: str) -> WebhookSource | None:
    """Find a webhook source by name. Returns None if it is not deployed."""
    return await fetch_one(conn, WebhookSource, _FIND_SOURCE, {"org": org, "dag": dag, "job": job})


# The finished task keeps the hash of the body, to recognise a repeated delivery.
_DELIVER = """
SELECT event_id FROM emit_source_events(
    ARRAY[with_parameters(finished_task(
        %(org_id)s, %(job_id)s, %(revision_id)s, %(bulk)s, %(dedupe_key)s, %(dataset_uuid)s,
        %(dataset_version)s, %(partition_key)s, %(start)s, %(end)s, %(cursor)s, %(body_hash)s),
        %(parameters)s)],
    %(paused)s)
"""
_DELIVERED = """
SELECT e.event_id, t.completion_hash
  FROM tasks t LEFT JOIN events e ON e.producer_task_id = t.task_id
 WHERE t.job_id = %(job_id)s AND t.dedupe_key = %(dedupe_key)s
"""


@dataclass(frozen=True)
class AcceptedDelivery:
    """The result of a delivery: an event, or a task whose function emits the events."""

    event_id: UUID | None
    task_id: UUID | None
    created: bool
    """False if the delivery was accepted before."""


async def deliver(
    conn: Conn,
    source: WebhookSource,
    delivery_id: str,
    scope: WebhookScope,
    body_hash: bytes,
    payload: object,
) -> AcceptedDelivery:
    """Record a delivery.

    Raises Conflict if the id was used with another body, NotFound if its event has been deleted.
    """
    if source.has_function:
        return await _create_task(conn, source, delivery_id, scope, payload)
    values = {
        "org_id": source.org_id,
        "job_id": source.job_id,
        "revision_id": source.revision_id,
        "bulk": source.bulk,
        "paused": source.deferred_by is not None,
        "dedupe_key": f"webhook:{delivery_id}",
        "dataset_uuid": source.dataset_uuid,
        "dataset_version": source.dataset_version,
        "partition_key": scope.partition_key(delivery_id),
        "start": scope.span.start if scope.span else None,
        "end": scope.span.end if scope.span else None,
        "cursor": scope.cursor,
        "body_hash": body_hash,
        "parameters": Jsonb({"payload": payload}),
    }
    created = await (await conn.execute(_DELIVER, values)).fetchone()
    if created is not None:
        return AcceptedDelivery(created[0], None, True)
    existing = await (await conn.execute(_DELIVERED, values)).fetchone()
    if existing is None or existing[0] is None:
        raise NotFound(
            f"delivery {delivery_id!r} was accepted before, but its event has been deleted; send a new id"
        )
    if bytes(existing[1]) != body_hash:
        raise _make_conflict(delivery_id)
    return AcceptedDelivery(existing[0], None, False)


async def _create_task(
    conn: Conn, source: WebhookSource, delivery_id: str, scope: WebhookScope, payload: object
) -> AcceptedDelivery:
    task = await source_tasks.create(
        conn,
        source.job_id,
        dedupe_key=f"webhook:{delivery_id}",
        partition_key=scope.partition_key(delivery_id),
        start=scope.span.start if scope.span else None,
        end=scope.span.end if scope.span else None,
        cursor=scope.cursor,
        parameters={"payload": payload},
    )
    if not task.is_same:
        raise _make_conflict(delivery_id)
    return AcceptedDelivery(None, task.task_id, task.created)


def _make_conflict(delivery_id: str) -> Conflict:
    return Conflict(
        f"delivery {delivery_id!r} was accepted before with a different body; send a new id"
    )
