"""`trace console`: print a one-time link to the web console."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from trace_etl.cli.client import EXIT_NOT_RUNNING, fail
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json
from trace_etl.client.stack_client import (
    NotRunning,
    RequestRejected,
    StackClient,
    TokenMissing,
    open_client,
    open_connection,
)

if TYPE_CHECKING:
    from trace_etl.lite.connection import StackConnection

_SESSION_LIFE = timedelta(days=1)


def console(
    user: Annotated[
        str | None,
        typer.Option(help="Name of another user to log in as. Needs the user key in the home."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the link in a browser.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Print a link that opens the web console.

    The link works once, within ten minutes. The console can do what the user can do.
    """
    from trace_etl.lite.connection import read
    from trace_etl.lite.home import Home

    stack_home = Home.at(home)
    connection = read(stack_home.connection)
    if connection is None or connection.console_url is None:
        reason = "the stack has no console" if connection else f"no stack runs in {stack_home.path}"
        fail([f"{reason}; start it with `trace up`"], EXIT_NOT_RUNNING)
    try:
        link = create_link(connection, user)
    except (NotRunning, RequestRejected, TokenMissing) as error:
        fail([f"the console gives no link: {error}; see `trace status`"])
    if as_json:
        print_json({"url": link})
    else:
        typer.echo(link)
    if browser:
        import webbrowser

        webbrowser.open(link)


def create_link(connection: "StackConnection", user: str | None = None) -> str:
    """Return a one-time link. Raises NotRunning, RequestRejected, TokenMissing."""
    with closing(_connect(connection, user)) as client:
        url = connection.console_url or ""
        reply = replace(client, api_url=url).post("/links")
    return f"{url}{reply['path']}"


def _connect(connection: "StackConnection", user: str | None) -> StackClient:
    if user is None:
        return open_connection(connection)
    from pathlib import Path

    from trace_etl.cli.admin.keys import require_credential
    from trace_etl.lite.credentials import keys
    from trace_etl.lite.home import Home

    key = keys.ensure_user_key(require_credential(Home.at(Path(connection.home)).user_keys))
    token = keys.sign_user_token(key, user, now=datetime.now(UTC), life=_SESSION_LIFE)
    return open_client(connection.api_url, connection.query_url, token, connection.ca)
