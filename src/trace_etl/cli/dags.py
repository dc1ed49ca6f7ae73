"""`trace deploy`, `trace dags`, `trace trigger`, `trace schema`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_json, print_rows

DagArgument = Annotated[str, typer.Argument(metavar="DAG", help="The DAG's name.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(deploy)
    app.command()(dags)
    app.command()(trigger)
    app.command()(schema)


def deploy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DAG file (YAML).")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Deploy a DAG file. The same text again changes nothing."""
    text = _read(file)
    with session(home, file=str(file)) as client:
        answer = client.post("/v1/dags", {"text": text, "filename": file.name})
    if as_json:
        print_json(answer)
    else:
        _print_deployed(answer)


def dags(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List the deployed DAGs."""
    with session(home) as client:
        answer = client.get("/v1/dags")
    if as_json:
        print_json(answer)
        return
    items: list[dict[str, Any]] = answer["items"]
    if not items:
        typer.echo("No DAG is deployed. Deploy one with: trace deploy FILE")
        return
    print_rows(
        ["dag", "jobs", "version", "deployed"],
        [[i["dag"], i["jobs"], i["dag_version"], local_time(i["deployed_at"])] for i in items],
        right=["jobs"],
    )


def trigger(
    dag: DagArgument,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A source job of it.")],
    blocks: Annotated[
        str, typer.Option("--range", metavar="START-END", help="Blocks, both ends included.")
    ],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Ask a source job for a range of blocks."""
    from trace_etl.model.errors import Invalid
    from trace_etl.model.scope import Range

    try:
        asked = Range.parse(blocks)
    except Invalid as wrong:
        fail([f"--range: {fault.message}" for fault in wrong.faults])
    body = {"dag": dag, "job": job, "start": asked.start, "end": asked.end}
    with session(home) as client:
        answer = client.post("/v1/triggers", body)
    if as_json:
        print_json(answer)
    elif answer["created"] and answer.get("deferred_by"):
        typer.echo(
            f"Kept the trigger of {dag}.{job} for blocks {asked.key}: the job is paused by "
            f"{answer['deferred_by']}, and takes it up when it goes on."
        )
    elif answer["created"]:
        typer.echo(f"Triggered {dag}.{job} for blocks {asked.key}. Watch it with: trace tasks")
    else:
        typer.echo(f"{dag}.{job} had been triggered for blocks {asked.key} before; nothing to do.")


def schema() -> None:
    """Print the JSON Schema of DAG files, for editors."""
    from trace_etl.plan.dagfile import dag_schema

    print_json(dag_schema())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        fail([f"{file}: {error.strerror}"])
    except UnicodeDecodeError as error:
        fail([f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}"])


def _print_deployed(answer: dict[str, Any]) -> None:
    what = "Deployed" if answer["changed"] else "Unchanged:"
    typer.echo(f"{what} {answer['dag']} (version {answer['dag_version']}).")
    published = {(d["job"], d["output"]): d["published"] for d in answer["datasets"]}
    rows: list[list[object]] = []
    for job in answer["jobs"]:
        outputs = [
            output if name is None else f"{output} (published as {name})"
            for (owner, output), name in published.items()
            if owner == job["name"]
        ]
        rows.append(
            [job["name"], job["activation"], job["operator"], job["runtime"], ", ".join(outputs)]
        )
    print_rows(["job", "activation", "operator", "runtime", "outputs"], rows)
