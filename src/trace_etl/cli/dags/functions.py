"""`trace udf`: build, push and list the bundles of user-defined functions."""

from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    AfterOption,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import format_number, format_size, format_time, print_answer

group = typer.Typer(help="Manage user-defined functions.", no_args_is_help=True)
_BUNDLES = ListTable(
    {
        "name": itemgetter("name"),
        "sha256": itemgetter("sha256"),
        "size": lambda item: format_size(item["size_bytes"]),
        "files": lambda item: format_number(item["file_count"]),
        "pushed by": itemgetter("pushed_by"),
        "pushed": lambda item: format_time(item["pushed_at"]),
    },
    "No bundle was pushed yet. Push one with `trace udf push DIRECTORY`.",
    right=("size", "files"),
    wide=["files", "pushed by"],
    next_command="trace udf list",
)


@group.command()
def push(
    directory: Annotated[Path, typer.Argument(help="Directory with the code of the function.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the bundle. Default: the name of the directory.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Push the directory of a function.

    The same files give the same bundle, whatever their times and their order.
    """
    from trace_etl.policy.bundles import BadBundle, build_bundle

    try:
        bundle = build_bundle(directory)
    except BadBundle as error:
        fail([str(error)])
    body = {
        "name": name or directory.resolve().name,
        "sha256": bundle.sha256,
        "size_bytes": len(bundle.content),
    }
    with session(home) as client:
        upload = client.post("/v1/udf/uploads", body)
        path, size = f"/v1/udf/uploads/{upload['upload_id']}", upload["part_bytes"]
        for number, start in enumerate(range(0, len(bundle.content), size)):
            client.put(f"{path}/parts/{number}", bundle.content[start : start + size])
        answer = client.post(f"{path}/finalize", {})
    print_answer(answer, as_json, _print_pushed)


def _print_pushed(answer: dict[str, Any]) -> None:
    typer.echo(f"Pushed {answer['name']}: {answer['file_count']} files. In the job:\n")
    # In quotes: a hash of digits only would be a number in YAML.
    typer.echo(f'    udf: {{bundle: {answer["name"]}, sha256: "{answer["sha256"]}"}}')


@group.command(name="list")
def list_bundles(
    name: Annotated[str | None, typer.Option(help="Only bundles of this name.")] = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List bundles, newest first."""
    print_list(
        home, "/v1/udf/bundles", _BUNDLES, as_json=as_json, name=name, limit=limit, after=after
    )
