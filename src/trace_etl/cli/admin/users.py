"""`trace users`: who may use a stack, and their tokens."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from trace_etl.cli.client import EXIT_NOT_RUNNING, fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_json, print_rows

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="reader, writer or admin.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    users = typer.Typer(no_args_is_help=True, help="Say who may read, change and administer.")
    users.command("list")(list_users)
    users.command()(add)
    users.command()(role)
    users.command()(disable)
    users.command()(enable)
    users.command()(token)
    app.add_typer(users, name="users")


def list_users(
    home: HomeOption = DEFAULT_HOME,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(help="Continue a listing: the `next` of the page before.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the users, by name."""
    with session(home) as client:
        answer = client.get("/v1/users", limit=limit, after=after)
    if as_json:
        print_json(answer)
        return
    items: list[dict[str, Any]] = answer["items"]
    rows = [
        [i["name"], i["role"], local_time(i["added_at"]), "yes" if i["disabled_at"] else None]
        for i in items
    ]
    print_rows(["user", "role", "added", "disabled"], rows)
    if answer["next"]:
        typer.echo(f"More: trace users list --after {answer['next']}", err=True)


def add(
    name: NameArgument,
    role: RoleArgument,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Let somebody in."""
    _change("/v1/users", {"name": name, "role": role}, home, as_json, f"Added {name} as {role}.")


def role(
    name: NameArgument,
    role: RoleArgument,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Give a user another role, from the next call on."""
    said = f"{name} is {role} from now on."
    _change(f"/v1/users/{_part(name)}/role", {"role": role}, home, as_json, said)


def disable(
    name: NameArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Refuse every call of a user from now on, whatever token they hold."""
    said = f"{name} is refused from now on."
    _change(f"/v1/users/{_part(name)}/disable", None, home, as_json, said)


def enable(
    name: NameArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Let a disabled user in again."""
    said = f"{name} may come in again."
    _change(f"/v1/users/{_part(name)}/enable", None, home, as_json, said)


def token(
    name: NameArgument,
    days: Annotated[int, typer.Option(min=1, max=366, help="How long it is good for.")] = 30,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print a bearer token for a user of this stack.

    It says who its holder is; the role is looked up at every call.
    """
    from trace_etl.lite.credentials import keys
    from trace_etl.lite.home import Home

    place = Home(home.expanduser().absolute())
    if not place.user_keys.is_dir():
        fail([f"no stack was ever started in {place.path}; try `trace up`"], EXIT_NOT_RUNNING)
    key = keys.ensure_user_key(place.user_keys)
    life = timedelta(days=days)
    typer.echo(keys.sign_user_token(key, name, now=datetime.now(UTC), life=life))


def _change(path: str, body: object, home: Any, as_json: bool, said: str) -> None:
    with session(home) as client:
        answer = client.post(path, body)
    if as_json:
        print_json(answer)
    else:
        typer.echo(said)


def _part(word: str) -> str:
    from urllib.parse import quote

    return quote(word, safe="")
