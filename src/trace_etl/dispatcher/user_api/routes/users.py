"""Users of an org, the caller's own identity, and the record of all queries."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends

from trace_etl.api.body import Name
from trace_etl.api.user.audit import AuditList
from trace_etl.api.user.users import Me, NewRole, NewUser, UserItem, UserList
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.listing import ListingDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.model.roles import Role
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import transaction
from trace_etl.state.feed import query_audit
from trace_etl.state.feed.query_audit import AuditFilter

router = APIRouter(prefix="/v1", tags=["users"])


@router.get("/me")
async def get_me(user: CallerDep) -> Me:
    """Show the caller's name, org and role."""
    return Me.model_validate(vars(user))


@router.get("/users")
async def list_users(
    user: CallerDep, ctx: ContextDep, page: PageDep, role: Role | None = None
) -> UserList:
    """List the users of the caller's org, by name."""
    (after,) = page.after(str) or ("",)
    async with ctx.pool.connection() as conn:
        rows = await users.list_users(conn, user.org_id, role=role, after=after, limit=page.fetch)
    return page.reply(UserList, rows, lambda item: (item.name,))


@router.post("/users")
async def add_user(body: NewUser, user: CallerDep, ctx: ContextDep) -> UserItem:
    """Add a user to the caller's org."""
    async with transaction(ctx.pool) as conn:
        return await users.add_user(conn, user.org_id, body.name, body.role)


@router.post("/users/{user}/role")
async def set_role(user: Name, body: NewRole, caller: CallerDep, ctx: ContextDep) -> UserItem:
    """Change a user's role. The role of the last admin cannot be changed."""
    async with transaction(ctx.pool) as conn:
        return await users.change_user(conn, caller.org_id, user, role=body.role)


@router.post("/users/{user}/disable")
async def disable_user(user: Name, caller: CallerDep, ctx: ContextDep) -> UserItem:
    """Disable a user: every later call is refused, with any token."""
    async with transaction(ctx.pool) as conn:
        return await users.change_user(conn, caller.org_id, user, disabled=True)


@router.post("/users/{user}/enable")
async def enable_user(user: Name, caller: CallerDep, ctx: ContextDep) -> UserItem:
    """Enable a disabled user again."""
    async with transaction(ctx.pool) as conn:
        return await users.change_user(conn, caller.org_id, user, disabled=False)


@router.get("/audit")
async def list_queries(
    listing: ListingDep, filters: Annotated[AuditFilter, Depends()]
) -> AuditList:
    """List the queries of the caller's org, answered or refused, newest first."""
    rows = await listing.fetch(query_audit.list_queries, filters, datetime, UUID)
    return listing.reply(AuditList, rows, lambda query: (query.asked_at, query.query_id))
