"""The change stream, as server-sent events."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request

from trace_etl.api.body import Name
from trace_etl.dispatcher.user_api.change_feed import ChangeFeed, ChangeFilter
from trace_etl.dispatcher.user_api.context import Caller, CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import decode_key, encode_key
from trace_etl.http.event_stream import EventStream, render_comment, render_event
from trace_etl.http.user_tokens import current_user
from trace_etl.model.errors import Fault, Invalid, TraceError
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool
from trace_etl.state.feed.changes import Change, ChangePosition

router = APIRouter(prefix="/v1", tags=["changes"])
HEARTBEAT = 15.0
SLOW_AFTER = 30.0
Kind = Literal["task", "dataset", "deploy", "rollout", "pause"]
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/changes", response_class=EventStream, responses=_STREAM)
async def follow_changes(
    request: Request,
    user: CallerDep,
    ctx: ContextDep,
    dag: Name | None = None,
    kind: Annotated[
        list[Kind] | None, Query(description="Only changes of these kinds; can be repeated.")
    ] = None,
    after: Annotated[
        str | None, Query(max_length=1024, description="Event id after which to continue.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=1024)] = None,
) -> EventStream:
    """Stream task transitions, dataset commits, deploys, rollouts and pauses as they happen.

    The stream starts with an event `ready` and continues after `Last-Event-ID` (or `after`) without a
    gap. An event `reset` means that this is not possible: read the lists again, then follow the stream.
    """
    last_id = last_event_id or after
    position = _parse_position(last_id) if last_id else None
    filters = ChangeFilter(user.org_id, dag, [str(k) for k in kind] if kind else None)
    access = _Access(request, user, ctx.pool)
    leave = ctx.changes.join(user.org_id, user.name)
    chunks = _yield_chunks(ctx.changes, filters, position, access)
    return EventStream(chunks, slow_after=SLOW_AFTER, on_end=leave)


class _Access:
    """Check during a stream whether the caller's token and role are still valid."""

    def __init__(self, request: Request, user: Caller, pool: Pool) -> None:
        self._request = request
        self._user = user
        self._pool = pool

    async def is_valid(self) -> bool:
        try:
            await current_user(self._request)
        except TraceError:
            return False
        try:
            async with self._pool.connection() as conn:
                return await users.get_role(conn, self._user.org_id, self._user.name) is not None
        except CONNECTION_ERRORS:
            return True  # unknown during an outage; no change is sent, and the next heartbeat checks again


async def _yield_chunks(
    feed: ChangeFeed, filters: ChangeFilter, after: ChangePosition | None, access: _Access
) -> AsyncGenerator[bytes]:
    end, deleted_up_to = await feed.head()
    if after is not None and (after > end or after.xid < deleted_up_to):
        yield render_event(
            "reset", {"reason": "changes after this position are no longer stored"}, _format_id(end)
        )
        after = None
    after = after or end
    yield b"retry: 2000\n" + render_event("ready", {}, _format_id(after))
    async for page in feed.pages(filters, after, heartbeat=HEARTBEAT):
        if page is not None:
            yield b"".join(_render_event(change) for change in page.changes)
        elif await access.is_valid():
            yield render_comment("heartbeat")
        else:
            return


def _render_event(change: Change) -> bytes:
    data = {"dag": change.dag, "job": change.job, **change.body}
    return render_event(change.kind, data, _format_id(change.position))


def _format_id(position: ChangePosition) -> str:
    return encode_key((position.xid, position.source, position.key, position.subkey))


def _parse_position(token: str) -> ChangePosition:
    try:
        xid, source, key, subkey = decode_key(token, (int, int, UUID, str))
    except ValueError as error:
        raise Invalid(
            [Fault("after", "is not the id of an event of this stream; leave it out to start now")]
        ) from error
    return ChangePosition(xid, source, key, subkey)
