"""`trace plan`, `trace deploy`, `trace rollback`, `trace dags`, `trace trigger` and the like."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Client, fail, session
from trace_etl.cli.dags.check import checked, checked_changes, columns, read
from trace_etl.cli.dags.plans import print_plan, print_rollout
from trace_etl.cli.dags.plans import wait as follow
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_json, print_rows

DagArgument = Annotated[str, typer.Argument(metavar="DAG", help="The DAG's name.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(plan)
    app.command()(deploy)
    app.command()(rollout)
    app.command()(rollback)
    app.command()(promote)
    app.command()(dags)
    app.command()(trigger)
    app.command()(schema)


_PATIENCE = 600.0  # a generation of a million partitions has as many tasks
CheckOption = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        envvar="TRACE_CHECK",
        show_default=False,
        help="Have Spark judge every job first, or none; by default SQL that is new or changed.",
    ),
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A DAG file (YAML).")]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Follow it until the new generations are complete.")
]


def plan(
    file: FileArgument,
    check: CheckOption = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show what a deploy of a DAG file would do. Changes nothing."""
    text = read(file)
    with session(home, file=str(file)) as client:
        answer = client.post("/v1/plans", {"text": text, "filename": file.name})
        _check(file, text, answer, check, client, home)
    if as_json:
        print_json(answer)
    elif answer["is_deployed"]:
        typer.echo(f"{answer['dag']} is deployed like this already.")
    else:
        base = answer["base_version"]
        typer.echo(f"Plan for {answer['dag']}" + (f" (at version {base})" if base else " (new)"))
        print_plan(answer["plan"])


def deploy(
    file: FileArgument,
    wait: WaitOption = False,
    check: CheckOption = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Deploy a DAG file. The same text again changes nothing."""
    text = read(file)
    body: dict[str, Any] = {"text": text, "filename": file.name}
    with session(home, file=str(file)) as client:
        planned = client.post("/v1/plans", body)
        body["base_version"] = planned["base_version"]
        body["columns"] = _check(file, text, planned, check, client, home)
        answer = client.post("/v1/dags", body, patience=_PATIENCE)
        if not as_json:
            _print_deployed(answer)
        if wait:
            dag, version = answer["dag"], answer["dag_version"]
            answer["rollout"] = follow(client, dag, version, quiet=as_json)
    if as_json:
        print_json(answer)
    if wait:
        _end(answer["rollout"], quiet=as_json)


def _check(
    file: Path, text: str, planned: dict[str, Any], check: bool | None, client: Client, home: Path
) -> list[dict[str, Any]]:
    """Have Spark judge what is to be deployed; the columns it found. Ends the program on faults."""
    if check is False or (check is None and planned["is_deployed"]):
        return []
    found = checked(file, home) if check else checked_changes(file, text, planned["plan"], client)
    return columns(found) if found else []


def rollout(dag: DagArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show how far the last deploy of a DAG is, and what it waits for."""
    with session(home) as client:
        answer = client.get(f"/v1/dags/{dag}/rollout")
    if as_json:
        print_json(answer)
    else:
        print_rollout(answer)


def rollback(
    dag: DagArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Go back to the version of a DAG before this one, at once."""
    with session(home) as client:
        answer = client.post(f"/v1/dags/{dag}/rollback", patience=_PATIENCE)
    if as_json:
        print_json(answer)
        return
    typer.echo(f"{dag} is at version {answer['dag_version']} again.")
    if answer["canceled"]:
        typer.echo(f"{answer['canceled']} tasks of {answer['from_version']} canceled or told.")


def promote(dag: DagArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Make the new generations of a DAG current now, whatever they lack."""
    with session(home) as client:
        answer = client.post(f"/v1/dags/{dag}/promote", patience=_PATIENCE)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"{dag}: the new generations are current (version {answer['dag_version']}).")


def dags(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List the deployed DAGs."""
    with session(home) as client:
        answer = client.get_all("/v1/dags")
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
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the DAG until it has nothing left to do.")
    ] = False,
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
        if wait:
            from trace_etl.cli.dags.waiting import wait_until_settled

            wait_until_settled(client, dag)
    if as_json:
        print_json(answer)
    elif wait:
        typer.echo(f"Done: {dag}.{job} for blocks {asked.key}.")
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
    from trace_etl.dag.parsing import dag_schema

    print_json(dag_schema())


def _end(rollout: dict[str, Any], *, quiet: bool) -> None:
    """Say how waiting ended; anything but complete is a failure."""
    if rollout["state"] == "complete":
        if not quiet:
            typer.echo("Complete: the new generations are current.")
        return
    if rollout["state"] == "building":
        fail([f"stuck: {rollout['reason']}"])
    fail([f"the deploy was {rollout['state'].replace('_', ' ')} meanwhile"])


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
    if answer["changed"]:
        print_plan(answer["plan"])
