"""Changes of a dataset."""

from typing import Annotated

from fastapi import APIRouter, Query

from trace_etl.api.body import Name
from trace_etl.api.user.data.changes import DatasetChanges
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.model.errors import CursorExpired
from trace_etl.state.catalog import datasets
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.feed import delivery_log
from trace_etl.state.feed.delivery_log import LogCursor, LogEnds

_BATCH = 1000
_MAX_BATCHES = 20
"""The rest is numbered by the background loop."""
router = APIRouter(prefix="/v1", tags=["datasets"])


@router.get("/datasets/{name}/changes")
async def list_changes(
    name: Name,
    user: CallerDep,
    ctx: ContextDep,
    since: Annotated[
        str | None,
        Query(max_length=64, description="A cursor, or `now`. Default: the start of the log."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> DatasetChanges:
    """List what was published, replaced or invalidated in a dataset after a cursor, in commit order."""
    await _number_committed(ctx.pool)
    async with snapshot(ctx.pool) as conn:
        dataset = await datasets.get_dataset(conn, user.org_id, name)
        ends = await delivery_log.get_ends(conn, dataset.dataset_uuid)
        after = _find_start(name, ends, since)
        page = await delivery_log.read(conn, ends, after, limit=limit)
    # A short page ends at the head: later pages need not pass the changes that no reader sees.
    return DatasetChanges(
        dataset=name,
        dataset_version=ends.dataset_version,
        items=page.items,
        cursor=str(page.end if page.more else ends.head),
        more=page.more,
    )


async def _number_committed(pool: Pool) -> None:
    for _ in range(_MAX_BATCHES):
        async with transaction(pool) as conn:
            if await delivery_log.number_new(conn, limit=_BATCH) < _BATCH:
                return


def _find_start(name: str, ends: LogEnds, since: str | None) -> LogCursor:
    if since is None:
        return ends.start
    if since == "now":
        return ends.head
    cursor = delivery_log.parse_cursor(since)
    problem = ends.explain_unusable(cursor)
    if problem is not None:
        raise CursorExpired(
            f"since: {problem}; read the whole dataset {name} again (version "
            f"{ends.dataset_version}), then continue with the cursor {ends.head}",
            cursor=str(ends.head),
            dataset_version=str(ends.dataset_version),
        )
    return cursor
