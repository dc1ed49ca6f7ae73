"""`trace users`: manage users, their roles and their tokens."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from trace_etl.cli.admin.keys import require_credential
from trace_etl.cli.client import NotRunning, connect_home, fail, quote_segment, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    AfterOption,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import format_time, print_answer

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="reader, writer or admin.")]

group = typer.Typer(no_args_is_help=True, help="Manage users, roles and tokens.")
_USERS = ListTable(
    {
        "user": itemgetter("name"),
        "role": itemgetter("role"),
        "added": lambda user: format_time(user["added_at"]),
        "disabled": lambda user: "yes" if user["disabled_at"] else None,
    },
    empty="No users.",
    next_command="trace users list",
)


@group.command("list")
def list_users(
    home: HomeOption = DEFAULT_HOME,
    limit: LimitOption = 100,
    after: AfterOption = None,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List users, by name."""
    print_list(home, "/v1/users", _USERS, as_json=as_json, limit=limit, after=after)


@group.command()
def add(
    name: NameArgument,
    role: RoleArgument,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Add a user."""
    _post_change(
        "/v1/users", {"name": name, "role": role}, home, as_json, f"Added {name} as {role}."
    )


@group.command()
def role(
    name: NameArgument,
    role: RoleArgument,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Change the role of a user.

    The new role applies from the next request on.
    """
    path = f"/v1/users/{quote_segment(name)}/role"
    _post_change(path, {"role": role}, home, as_json, f"{name} has the role {role} now.")


@group.command()
def disable(
    name: NameArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Disable a user: reject every request.

    The tokens of the user stop working immediately.
    """
    _post_change(
        f"/v1/users/{quote_segment(name)}/disable", None, home, as_json, f"Disabled {name}."
    )


@group.command()
def enable(
    name: NameArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Enable a disabled user."""
    _post_change(f"/v1/users/{quote_segment(name)}/enable", None, home, as_json, f"Enabled {name}.")


@group.command()
def token(
    name: NameArgument,
    days: Annotated[int, typer.Option(min=1, max=366, help="Days until the token expires.")] = 30,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print a bearer token for a user.

    The token identifies the user. The role is looked up at every request. While the stack runs, an unknown
    user is an error.
    """
    from trace_etl.lite.credentials import keys
    from trace_etl.lite.home import Home

    key = keys.ensure_user_key(require_credential(Home.at(home).user_keys))
    life = timedelta(days=days)
    _require_user(home, name)
    typer.echo(keys.sign_user_token(key, name, now=datetime.now(UTC), life=life))


def _require_user(home: Path, name: str) -> None:
    """Exit with an error if the running stack has no such user. Without a stack, nothing is checked."""
    try:
        client = connect_home(home)
    except NotRunning:
        return
    with closing(client):
        users = client.get("/v1/users", limit=1000)["items"]
    if len(users) < 1000 and name not in {user["name"] for user in users}:
        fail([f"no user {name!r}; `trace users list` lists them, `trace users add` adds one"])


def _post_change(path: str, body: object, home: Path, as_json: bool, message: str) -> None:
    with session(home) as client:
        answer = client.post(path, body)
    print_answer(answer, as_json, lambda _: typer.echo(message))
