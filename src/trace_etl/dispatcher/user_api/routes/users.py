"""Users of an org, and who the caller is."""

from dataclasses import asdict

from fastapi import APIRouter

from trace_etl.api.body import Name
from trace_etl.api.user import users as wire
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.state.catalog import users
from trace_etl.state.catalog.users import UserView
from trace_etl.state.db.pool import transaction

router = APIRouter(prefix="/v1", tags=["users"])


@router.get("/me")
async def get_me(user: CallerDep) -> wire.Me:
    """Who calls, and what the caller may do."""
    return wire.Me.model_validate(asdict(user))


@router.get("/users")
async def list_users(
    user: CallerDep, ctx: ContextDep, page: PageDep, role: wire.Role | None = None
) -> wire.UserList:
    """The users of the caller's org, by name."""
    (after,) = page.after(str) or ("",)
    async with ctx.pool.connection() as conn:
        found = await users.listing(conn, user.org_id, role=role, after=after, limit=page.fetch)
    items, following = page.cut(found, lambda view: (view.name,))
    return wire.UserList(items=[_item(view) for view in items], next=following)


@router.post("/users")
async def add_user(body: wire.NewUser, user: CallerDep, ctx: ContextDep) -> wire.UserItem:
    """Let somebody into the caller's org."""
    async with transaction(ctx.pool) as conn:
        return _item(await users.add(conn, user.org_id, body.name, body.role))


@router.post("/users/{user}/role")
async def set_role(
    user: Name, body: wire.NewRole, caller: CallerDep, ctx: ContextDep
) -> wire.UserItem:
    """Give a user another role. The last admin stays one."""
    async with transaction(ctx.pool) as conn:
        return _item(await users.change(conn, caller.org_id, user, role=body.role))


@router.post("/users/{user}/disable")
async def disable_user(user: Name, caller: CallerDep, ctx: ContextDep) -> wire.UserItem:
    """Refuse every call of a user from now on, whatever token they hold."""
    async with transaction(ctx.pool) as conn:
        return _item(await users.change(conn, caller.org_id, user, disabled=True))


@router.post("/users/{user}/enable")
async def enable_user(user: Name, caller: CallerDep, ctx: ContextDep) -> wire.UserItem:
    """Let a disabled user in again."""
    async with transaction(ctx.pool) as conn:
        return _item(await users.change(conn, caller.org_id, user, disabled=False))


def _item(view: UserView) -> wire.UserItem:
    return wire.UserItem.model_validate(asdict(view))
