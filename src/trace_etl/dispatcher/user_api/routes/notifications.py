"""Notifications."""

from typing import Annotated

from fastapi import APIRouter, Query

from trace_etl.api.body import Name
from trace_etl.api.user.notifications import NotificationList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.state.feed import notifications

router = APIRouter(prefix="/v1", tags=["dags"])


@router.get("/notifications")
async def list_notifications(
    user: CallerDep,
    ctx: ContextDep,
    dag: Name | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> NotificationList:
    """List the newest notifications: sent, waiting for delivery, or failed."""
    async with ctx.pool.connection() as conn:
        items = await notifications.list_notifications(conn, user.org_id, dag=dag, limit=limit)
    return NotificationList(items=items, next=None)
