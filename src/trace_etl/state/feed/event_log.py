"""Read the events of datasets and the triggers of sources."""

from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.body import Name
from trace_etl.api.user.events import EventItem
from trace_etl.api.user.triggers import TriggerItem
from trace_etl.model.dag import SourceKind
from trace_etl.model.errors import NotFound
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import (
    JobNameFilter,
    NewestFirstKey,
    fetch_all,
    fetch_one,
    newest_first_values,
)


@dataclass(frozen=True)
class EventFilter(JobNameFilter):
    dataset: Name | None = None
    routed: bool | None = None
    deferred: bool | None = None
    """Whether a job that the event is for is paused, and the event waits until the job resumes."""


_LIST = """
SELECT * FROM event_details
 WHERE org_id = %(org_id)s
   AND (%(dag)s::text IS NULL OR dag = %(dag)s)
   AND (%(job)s::text IS NULL OR job = %(job)s)
   AND (%(dataset)s::text IS NULL OR dataset = %(dataset)s)
   AND (%(routed)s::boolean IS NULL OR (routed_at IS NOT NULL) = %(routed)s)
   AND (%(deferred)s::boolean IS NULL
        OR EXISTS (SELECT FROM deferred_events f WHERE f.event_id = event_details.event_id)
           = %(deferred)s)
   AND (%(before)s::timestamptz IS NULL
        OR (accepted_at, event_id) < (%(before)s, %(before_id)s))
 ORDER BY accepted_at DESC, event_id DESC
 LIMIT %(limit)s
"""


async def list_events(
    conn: Conn, org_id: UUID, filters: EventFilter, *, after: NewestFirstKey | None, limit: int
) -> list[EventItem]:
    """List one page of an org's events, newest first."""
    return await fetch_all(
        conn, EventItem, _LIST, newest_first_values(org_id, filters, after, limit)
    )


_GET = "SELECT * FROM event_details WHERE org_id = %(org_id)s AND event_id = %(event_id)s"


async def get_event(conn: Conn, org_id: UUID, event_id: UUID) -> EventItem:
    """Read one event. Raises NotFound."""
    event = await fetch_one(conn, EventItem, _GET, {"org_id": org_id, "event_id": event_id})
    if event is None:
        raise NotFound(f"no event {event_id}; `GET /v1/events` lists them")
    return event


@dataclass(frozen=True)
class TriggerFilter(JobNameFilter):
    source_kind: SourceKind | None = None


# Starts from the tasks of source jobs: there is one task per trigger, and far fewer tasks than events.
_TRIGGERS = """
SELECT e.event_id, g.name AS dag, j.name AS job, r.source ->> 'kind' AS source_kind,
       e.partition_key, e.range_start AS start, e.range_end AS end, e.cursor_value AS cursor,
       (e.parameters ->> 'scheduled_time')::timestamptz AS scheduled_time,
       e.accepted_at AS triggered_at, e.routed_at
  FROM jobs j JOIN dags g USING (dag_id)
  JOIN tasks t ON t.job_id = j.job_id
  JOIN job_revisions r ON r.revision_id = t.revision_id
   AND r.source ->> 'kind' IN ('manual', 'cron', 'webhook')
  JOIN events e ON e.producer_task_id = t.task_id
 WHERE j.org_id = %(org_id)s
   AND j.job_id IN (SELECT s.job_id FROM job_revisions s WHERE s.activation = 'source')
   AND (%(dag)s::text IS NULL OR g.name = %(dag)s)
   AND (%(job)s::text IS NULL OR j.name = %(job)s)
   AND (%(source_kind)s::text IS NULL OR r.source ->> 'kind' = %(source_kind)s)
   AND (%(before)s::timestamptz IS NULL
        OR (e.accepted_at, e.event_id) < (%(before)s, %(before_id)s))
 ORDER BY e.accepted_at DESC, e.event_id DESC
 LIMIT %(limit)s
"""


async def list_triggers(
    conn: Conn, org_id: UUID, filters: TriggerFilter, *, after: NewestFirstKey | None, limit: int
) -> list[TriggerItem]:
    """List one page of the triggers by users, schedules and webhooks, newest first."""
    return await fetch_all(
        conn, TriggerItem, _TRIGGERS, newest_first_values(org_id, filters, after, limit)
    )
