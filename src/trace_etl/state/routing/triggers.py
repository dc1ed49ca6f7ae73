"""Trigger sources with a block range, a cursor, a partition key, a payload or a tick.

A source emits an event for it. A source with a function gets a task, which emits the events.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
from psycopg.types.json import Jsonb

from trace_etl.api.user.triggers import TriggerReply
from trace_etl.model.errors import Conflict, Fault, Invalid, NotFound
from trace_etl.model.scope import Range
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_one
from trace_etl.state.routing import source_tasks
from trace_etl.state.routing.events import find_new_ranges
from trace_etl.state.tasks import retries

_MAX_PAYLOAD_BYTES = 64 * 1024


@dataclass(frozen=True)
class TriggerScope:
    """What a source emits an event for. Without a scope, the payload is an event of its own."""

    span: Range | None = None
    cursor: int | None = None
    key: str | None = None
    scheduled_time: datetime | None = None
    payload: Any = None

    @property
    def parameters(self) -> dict[str, Any] | None:
        """The values that the tasks of the event receive."""
        values: dict[str, Any] = {}
        if self.scheduled_time is not None:
            values["scheduled_time"] = tick_key(self.scheduled_time)
        if self.payload is not None:
            values["payload"] = self.payload
        return values or None


def tick_key(time: datetime) -> str:
    """Return the partition key of a tick: its time in UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class _Source:
    """A deployed source job."""

    dag: str
    job: str
    job_id: UUID
    dag_id: UUID
    revision_id: UUID
    activation: str
    kind: str | None
    has_function: bool
    dataset_uuid: UUID
    dataset_version: UUID
    active: bool
    bulk: bool
    paused_by: str | None
    bulk_paused_by: str | None


_FIND_SOURCE = """
SELECT g.name AS dag, j.name AS job, j.job_id, j.dag_id, j.revision_id, r.activation,
       r.source ->> 'kind' AS kind, r.udf ->> 'sha256' IS NOT NULL AS has_function,
       o.dataset_uuid, o.dataset_version, j.active, r.priority = 'bulk' AS bulk,
       j.paused_by, j.bulk_paused_by
  FROM dags g JOIN jobs j USING (dag_id) JOIN job_revisions r USING (revision_id)
  JOIN job_outputs o ON o.revision_id = r.revision_id AND o.output_index = 0
 WHERE g.org_id = %(org_id)s AND g.name = %(dag)s AND j.name = %(job)s
"""


async def trigger(
    conn: Conn,
    org_id: UUID,
    dag: str,
    job: str,
    scope: TriggerScope,
    *,
    kinds: Sequence[str] = ("manual", "cron"),
) -> TriggerReply:
    """Emit the events of a source for a scope, each block and each key once.

    Failed and canceled tasks of what was triggered before run again. Raises NotFound, Conflict, Invalid.
    """
    values = {"org_id": org_id, "dag": dag, "job": job}
    source = await fetch_one(conn, _Source, _FIND_SOURCE, values)
    if source is None or not source.active:
        raise NotFound(f"no job {job!r} in a deployed DAG {dag!r}; `trace jobs` lists them")
    if source.activation != "source" or source.kind is None or source.kind not in kinds:
        raise Conflict(
            f"job {job!r} cannot be triggered: it is not a {' or '.join(kinds)} source; name one"
        )
    scope = _check_scope(source.kind, job, scope)
    if source.has_function:
        return await _create_task(conn, source, scope)
    if scope.span is not None:
        return await _trigger_range(conn, org_id, source, scope, scope.span)
    return await _trigger_key(conn, org_id, source, scope)


def _check_scope(kind: str, job: str, scope: TriggerScope) -> TriggerScope:
    """Return the complete scope of a source of this kind. Raises Conflict, Invalid."""
    has_scope = (scope.span, scope.cursor, scope.key) != (None, None, None)
    if kind == "cron":
        if has_scope or scope.payload is not None:
            raise Conflict(
                f"job {job!r} is a cron source: it takes the time of a tick, not a range, cursor, key or "
                "payload; use `trace trigger --at TIME`"
            )
        now = datetime.now(UTC).replace(microsecond=0)
        return TriggerScope(scheduled_time=scope.scheduled_time or now)
    if scope.scheduled_time is not None:
        raise Conflict(
            f"job {job!r} is a manual source: only a cron source takes the time of a tick; leave it out"
        )
    if not has_scope and scope.payload is None:
        rule = (
            "is required for a manual source: give blocks (`--range 0-9999`), a cursor (`--cursor`), "
            "a partition key (`--key`) or a payload (`--payload`)"
        )
        raise Invalid([Fault("start", rule)])
    if len(orjson.dumps(scope.payload)) > _MAX_PAYLOAD_BYTES:
        raise Invalid(
            [
                Fault(
                    "payload",
                    f"must have at most {_MAX_PAYLOAD_BYTES} bytes; store the data and send its address",
                )
            ]
        )
    span = scope.span or (Range.from_key(scope.key) if scope.key else None)
    return TriggerScope(span, scope.cursor, scope.key, None, scope.payload)


_TRIGGER = """
SELECT event_id FROM emit_source_events(
    ARRAY[with_parameters(finished_task(
        %(org_id)s, %(job_id)s, %(revision_id)s, %(bulk)s, %(dedupe_key)s, %(dataset_uuid)s,
        %(dataset_version)s, %(partition_key)s, %(start)s, %(end)s, %(cursor)s, %(hash)s),
        %(parameters)s)],
    %(paused)s)
"""
_FIND_LAST_EVENT = """
SELECT event_id FROM events
 WHERE dataset_version = %(dataset_version)s AND range_start <= %(end)s AND range_end >= %(start)s
 ORDER BY accepted_at DESC LIMIT 1
"""


async def _trigger_range(
    conn: Conn, org_id: UUID, source: _Source, scope: TriggerScope, span: Range
) -> TriggerReply:
    new = await find_new_ranges(conn, source.dataset_version, span)
    emitted: dict[Range, UUID] = {}
    for piece in new:
        values = _make_values(org_id, source, scope, piece.key)
        event_id = await _emit(conn, {**values, "start": piece.start, "end": piece.end})
        if event_id is not None:  # None: retention deleted the event of an earlier trigger
            emitted[piece] = event_id
    retried = [] if new == [span] else await retries.retry_downstream(conn, source.job_id, span)
    event_ids = list(emitted.values()) or [await _find_last_event(conn, source, span)]
    return _make_reply(source, event_ids, span.key, ranges=list(emitted), retried=retried)


async def _create_task(conn: Conn, source: _Source, scope: TriggerScope) -> TriggerReply:
    """Create the task of a scope, unless it was created before. One that failed runs again."""
    key = scope.span.key if scope.span else _choose_key(scope)
    task = await source_tasks.create(
        conn,
        source.job_id,
        dedupe_key=f"trigger:{key if key is not None else f'c:{scope.cursor}'}",
        partition_key=key,
        start=scope.span.start if scope.span else None,
        end=scope.span.end if scope.span else None,
        cursor=scope.cursor,
        parameters=scope.parameters,
    )
    if not task.is_same:
        raise _make_conflict(key or scope.cursor)
    retried: Sequence[UUID] = ()
    if not task.created:
        retried = await retries.retry_caused(conn, source.dag_id, task_ids=[task.task_id])
    return _make_reply(
        source,
        [],
        key,
        scope.cursor,
        created=task.created,
        retried=retried,
        task_id=task.task_id,
    )


async def _find_last_event(conn: Conn, source: _Source, span: Range) -> UUID:
    values = {"dataset_version": source.dataset_version, "start": span.start, "end": span.end}
    row = await (await conn.execute(_FIND_LAST_EVENT, values)).fetchone()
    if row is None:
        raise _make_deleted(span.key)
    return row[0]


_FIND_TRIGGERED = """
SELECT e.event_id, t.completion_hash
  FROM tasks t LEFT JOIN events e ON e.producer_task_id = t.task_id
   AND e.dataset_version = t.dataset_version
 WHERE t.job_id = %(job_id)s AND t.dedupe_key = %(dedupe_key)s
"""


async def _trigger_key(
    conn: Conn, org_id: UUID, source: _Source, scope: TriggerScope
) -> TriggerReply:
    """Emit the event of a cursor, a key, a tick or a payload, unless it was emitted before."""
    key = _choose_key(scope)
    values = _make_values(org_id, source, scope, key)
    event_id = await _emit(conn, {**values, "start": None, "end": None})
    if event_id is not None:
        return _make_reply(source, [event_id], key, scope.cursor, created=True)
    row = await (await conn.execute(_FIND_TRIGGERED, values)).fetchone()
    if row is None or row[0] is None:
        raise _make_deleted(key or scope.cursor)
    if (row[1] and bytes(row[1])) != values["hash"]:
        raise _make_conflict(key or scope.cursor)
    retried = await retries.retry_caused(conn, source.dag_id, event_ids=[row[0]])
    return _make_reply(source, [row[0]], key, scope.cursor, retried=retried)


def _make_conflict(scope: str | int | None) -> Conflict:
    return Conflict(
        f"{scope} was triggered before with a different payload; send that payload, or another key"
    )


def _make_deleted(scope: str | int | None) -> NotFound:
    return NotFound(
        f"{scope} was triggered before, but its event has been deleted; backfill the consumers instead"
    )


def _make_reply(
    source: _Source,
    event_ids: list[UUID],
    key: str | None,
    cursor: int | None = None,
    *,
    created: bool = False,
    ranges: Sequence[Range] = (),
    retried: Sequence[UUID] = (),
    task_id: UUID | None = None,
) -> TriggerReply:
    return TriggerReply(
        event_id=event_ids[0] if event_ids else None,
        task_id=task_id,
        dag=source.dag,
        job=source.job,
        partition_key=key,
        cursor=cursor,
        created=created or bool(ranges),
        ranges=[piece.key for piece in ranges],
        event_ids=event_ids,
        retried=len(retried),
        retried_task_ids=list(retried),
        deferred_by=_find_pause(source),
    )


def _choose_key(scope: TriggerScope) -> str | None:
    """Return the partition key of a scope without blocks; None for a cursor."""
    if scope.scheduled_time is not None:
        return tick_key(scope.scheduled_time)
    if scope.key is None and scope.cursor is None:
        return f"payload-{uuid4()}"
    return scope.key


async def _emit(conn: Conn, values: dict[str, Any]) -> UUID | None:
    row = await (await conn.execute(_TRIGGER, values)).fetchone()
    return row[0] if row else None


def _find_pause(source: _Source) -> str | None:
    return source.paused_by or (source.bulk_paused_by if source.bulk else None)


def _hash(payload: object) -> bytes:
    return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)).digest()


def _make_values(
    org_id: UUID, source: _Source, scope: TriggerScope, key: str | None
) -> dict[str, Any]:
    scope_key = key if key is not None else f"c:{scope.cursor}"
    parameters = scope.parameters
    return {
        "org_id": org_id,
        "job_id": source.job_id,
        "revision_id": source.revision_id,
        "bulk": source.bulk,
        "paused": _find_pause(source) is not None,
        "dataset_uuid": source.dataset_uuid,
        "dataset_version": source.dataset_version,
        "dedupe_key": f"trigger:{source.dataset_version}:{scope_key}",
        "partition_key": key,
        "cursor": scope.cursor,
        "parameters": None if parameters is None else Jsonb(parameters),
        "hash": None if scope.payload is None else _hash(scope.payload),
    }
