"""`trace udf`: build, push, list and try the bundles of user-defined functions."""

import json
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trace_etl.cli.client import EXIT_REJECTED, RequestRejected, StackClient, fail, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    AfterOption,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import (
    format_count,
    format_number,
    format_size,
    format_time,
    print_answer,
    print_rows,
)
from trace_etl.cli.progress import show_bytes, show_counts

if TYPE_CHECKING:
    import httpx

    from trace_etl.worker.functions.function_trial import Trial

group = typer.Typer(help="Manage user-defined functions.", no_args_is_help=True)
_SHOWN_ROWS = 20
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
        with show_bytes() as report:
            for number, start in enumerate(range(0, len(bundle.content), size)):
                report("uploading", start, len(bundle.content))
                client.put(f"{path}/parts/{number}", bundle.content[start : start + size])
            report("uploading", len(bundle.content), len(bundle.content), "checking")
            answer = client.post(f"{path}/finalize", {})
    print_answer(answer, as_json, lambda pushed: _print_pushed(pushed, directory))


def _print_pushed(answer: dict[str, Any], directory: Path) -> None:
    from trace_etl.worker.functions.function_trial import BadEvent, choose_runtime

    try:
        runtime, handler = choose_runtime(directory, None)
    except BadEvent:  # the directory has no module, or several
        runtime, handler = None, "MODULE.FUNCTION"
    files = format_count(answer["file_count"], "file")
    typer.echo(f"Pushed {answer['name']}: {files}. In the job:\n")
    if runtime:
        typer.echo(f"    runtime: {runtime}")
    # In quotes: a hash of digits only would be a number in YAML.
    typer.echo(
        f'    udf: {{bundle: {answer["name"]}, sha256: "{answer["sha256"]}", handler: {handler}}}'
    )


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


@group.command(name="test")
def try_function(
    directory: Annotated[Path, typer.Argument(help="Directory with the code of the function.")],
    event: Annotated[Path, typer.Option(help="JSON file with config, scope, inputs and outputs.")],
    handler: Annotated[
        str | None, typer.Option(help="Handler, such as rule.handler. Default: of the only module.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="Runtime whose limits apply. Default: by the language.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Run a function once in the sandbox.

    It may query the datasets of the stack. Nothing is published: the rows of the function are printed.
    Exit code 1 if the function failed.
    """
    from trace_etl import logs
    from trace_etl.dag.runtimes import BadRuntimes, load_runtimes
    from trace_etl.lite.home import Home
    from trace_etl.policy.bundles import BadBundle, build_bundle
    from trace_etl.worker.functions.function_trial import (
        BadEvent,
        choose_runtime,
        list_views,
        make_task,
        run_trial,
    )

    logs.configure("udf-test", "error")
    content = _read_event(event)
    try:
        bundle = build_bundle(directory)
        default, handler = choose_runtime(directory, handler)
        file = Home(home).runtimes
        registry = load_runtimes(file if file.exists() else None)
        name = runtime or default
        if name not in registry.fitting(["sandbox", "lambda"]):
            known = ", ".join(registry.fitting(["sandbox", "lambda"]))
            fail([f"--runtime: {name} does not run functions; use one of {known}"])
        task = make_task(
            content, bundle, name=directory.resolve().name, handler=handler, runtime=name
        )
        views = list_views(content)
    except (BadBundle, BadEvent, BadRuntimes) as error:
        fail([str(error)])
    with session(home) as client, show_counts() as report:
        report("running", 0, 0)
        trial = run_trial(
            task, bundle, registry.entries[name], views, lambda s, p: _query(client, s, p)
        )
    print_answer(_describe(trial), as_json, _print_trial)
    if trial.error is not None:
        raise typer.Exit(EXIT_REJECTED)


def _read_event(file: Path) -> dict[str, Any]:
    try:
        content: object = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        fail([f"--event: {file} cannot be read as JSON: {error}; correct it"])
    if not isinstance(content, dict):
        fail([f'--event: {file} must have an object such as {{"config": {{}}, "inputs": []}}'])
    return cast("dict[str, Any]", content)


def _query(client: StackClient, sql: str, params: Any) -> "httpx.Response":
    import httpx

    try:
        return httpx.Response(200, json=client.query(sql, params=params))
    except RequestRejected as error:
        return httpx.Response(error.status, json=dict(error.problem))


def _describe(trial: "Trial") -> dict[str, Any]:
    return {
        "status": "Completed" if trial.error is None else "Failed",
        "error": None if trial.error is None else str(trial.error),
        "output": trial.output.decode("utf-8", "replace"),
        "published": trial.published,
        "events": trial.events,
        "objects": {url: len(content) for url, content in trial.objects.items()},
    }


def _print_trial(answer: dict[str, Any]) -> None:
    if answer["output"]:
        typer.echo(answer["output"].rstrip("\n"))
    for name, rows in answer["published"].items():
        typer.echo(f"\n{name}: {format_count(len(rows), 'row')}")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        print_rows(columns, [[row.get(c) for c in columns] for row in rows[:_SHOWN_ROWS]])
        if len(rows) > _SHOWN_ROWS:
            typer.echo(f"… the first {_SHOWN_ROWS}; all with --json")
    if answer["error"]:
        typer.secho(f"error: {answer['error']}", err=True, fg=typer.colors.RED)
    else:
        typer.echo("\nCompleted. Nothing was published.")
