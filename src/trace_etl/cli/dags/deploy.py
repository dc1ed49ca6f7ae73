"""`trace plan`, `trace deploy`, `trace rollout`, `trace rollback`, `trace promote`, `trace dags`."""

from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from trace_etl.cli.client import (
    EXIT_REJECTED,
    Answer,
    StackClient,
    fail,
    quote_segment,
    session,
)
from trace_etl.cli.dags.check import (
    check_changes,
    check_file,
    describe_columns,
    list_unchecked,
    read_dag_file,
)
from trace_etl.cli.dags.plans import print_plan, print_rollout, wait_for_rollout
from trace_etl.cli.dags.triggers import wait_for_work
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DagArgument,
    DagFileArgument,
    HomeOption,
    JsonOption,
    WideOption,
)
from trace_etl.cli.output import (
    format_count,
    format_id,
    format_time,
    print_answer,
    print_json,
    print_note,
    print_rows,
)

_DEPLOY_TIMEOUT = 600.0  # a generation of a million partitions has a million tasks
CheckOption = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        envvar="TRACE_CHECK",
        show_default=False,
        help="Check all jobs with Spark, or none. Default: only new or changed SQL.",
    ),
]
BreakingOption = Annotated[
    bool,
    typer.Option(
        "--allow-breaking",
        help="Remove published names that other DAGs read, and appended rows that cannot be made again.",
    ),
]
WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="Wait until the new generations and the first tasks are complete."),
]
_DAGS = ListTable(
    {
        "dag": itemgetter("dag"),
        "jobs": itemgetter("jobs"),
        "version": lambda item: format_id(item["dag_version"]),
        "deployed": lambda item: format_time(item["deployed_at"]),
    },
    empty="No DAG is deployed. Deploy one with: trace deploy FILE",
    right=["jobs"],
)


def plan(
    file: DagFileArgument,
    check: CheckOption = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show what a deploy would change."""
    text = read_dag_file(file)
    with session(home, file=str(file)) as client:
        answer = client.post("/v1/plans", {"text": text, "filename": file.name})
        _check_sql(file, text, answer, check, client, home)
    print_answer(answer, as_json, _print_planned)
    if answer["plan"]["breaking"] or answer["plan"]["losing_rows"]:
        raise typer.Exit(EXIT_REJECTED)


def deploy(
    file: DagFileArgument,
    wait: WaitOption = False,
    check: CheckOption = None,
    allow_breaking: BreakingOption = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deploy a DAG file.

    Deploying the same text again changes nothing.
    """
    text = read_dag_file(file)
    body: dict[str, Any] = {"text": text, "filename": file.name}
    with session(home, file=str(file)) as client:
        planned = client.post("/v1/plans", body)
        body["base_version"] = planned["base_version"]
        body["allow_breaking"] = allow_breaking
        body["columns"] = _check_sql(file, text, planned, check, client, home)
        _print_warnings(planned)
        answer = client.post("/v1/dags", body, timeout=_DEPLOY_TIMEOUT)
        answer["warnings"] = planned["warnings"]
        if not as_json:
            _print_deployed(answer)
        if wait:
            dag, version = answer["dag"], answer["dag_version"]
            answer["rollout"] = wait_for_rollout(client, dag, version)
            if answer["rollout"]["state"] == "complete":
                roots = {"rollout_id": answer["rollout"]["rollout_id"]}
                wait_for_work(client, dag, roots)
    if as_json:
        print_json(answer)
    if wait:
        _report_end(answer["rollout"], quiet=as_json)


def _check_sql(
    file: Path, text: str, planned: Answer, check: bool | None, client: StackClient, home: Path
) -> list[dict[str, Any]]:
    """Check the SQL with Spark and return the columns of the outputs. Exits on an error.

    Adds a warning to the plan for each changed job that cannot be checked yet.
    """
    if check is False or (check is None and planned["is_deployed"]):
        return []
    if check:
        return describe_columns(check_file(file, home))
    analysis = check_changes(file, text, planned["plan"], client, home)
    if analysis is None:
        return []
    planned["warnings"] += list_unchecked(analysis)
    return describe_columns(analysis)


def rollout(dag: DagArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show the progress of the last deploy."""
    with session(home) as client:
        answer = client.get(f"/v1/dags/{quote_segment(dag)}/rollout")
    print_answer(answer, as_json, print_rollout)


def rollback(
    dag: DagArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a rollback would do and change nothing.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Return to the previous version of a DAG."""
    answer = _post_to_dag(home, dag, "rollback?dry_run=true" if dry_run else "rollback")
    print_answer(answer, as_json, _print_rolled_back)


def promote(dag: DagArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Make incomplete new generations current."""
    answer = _post_to_dag(home, dag, "promote")
    message = f"{dag}: the new generations are current (version {answer['dag_version']})."
    print_answer(answer, as_json, lambda _: typer.echo(message))


def _post_to_dag(home: Path, dag: str, action: str) -> Answer:
    with session(home) as client:
        return client.post(f"/v1/dags/{quote_segment(dag)}/{action}", timeout=_DEPLOY_TIMEOUT)


def dags(
    home: HomeOption = DEFAULT_HOME, wide: WideOption = False, as_json: JsonOption = False
) -> None:
    """List the deployed DAGs."""
    print_list(home, "/v1/dags", _DAGS, as_json=as_json, all_pages=True)


def schema() -> None:
    """Print the JSON Schema of DAG files."""
    from trace_etl.dag.parsing import dag_schema

    print_json(dag_schema())


def _report_end(rollout: Answer, *, quiet: bool) -> None:
    """Report the end of a rollout. Exits with 1 unless it is complete."""
    if rollout["state"] == "building":
        fail([f"stuck: {rollout['reason']}"])
    if rollout["state"] != "complete":
        fail(
            [
                f"the deploy was {rollout['state'].replace('_', ' ')} by another command; "
                "`trace rollout` shows the current one"
            ]
        )
    if not quiet:
        typer.echo("Complete: the new generations are current.")


def _print_planned(answer: Answer) -> None:
    if answer["is_deployed"]:
        typer.echo(f"{answer['dag']}: this text is deployed already.")
        return
    base = answer["base_version"]
    typer.echo(f"Plan for {answer['dag']}" + (f" (at version {base})" if base else " (new)"))
    print_plan(answer["plan"])
    _print_warnings(answer)


def _print_warnings(planned: Answer) -> None:
    for warning in planned["warnings"]:
        print_note(f"warning: {warning}", typer.colors.YELLOW)


def _print_rolled_back(answer: Answer) -> None:
    would = "would be" if answer["dry_run"] else "is"
    typer.echo(f"{answer['dag']} {would} at version {answer['dag_version']} again.")
    would = "would be" if answer["dry_run"] else "are"
    if answer["canceled"]:
        canceled = format_count(answer["canceled"], "task")
        typer.echo(f"{canceled} of version {answer['from_version']} {would} canceled.")
    if answer["requeued"]:
        typer.echo(f"{format_count(answer['requeued'], 'canceled task')} {would} queued again.")
    for restored in answer["datasets"]:
        name = restored["dataset"] or f"{restored['job']}.{restored['output']}"
        typer.echo(f"  {name}: readers see generation {restored['to_version']} again")


def _print_deployed(answer: Answer) -> None:
    outcome = "Deployed" if answer["changed"] else "Unchanged:"
    typer.echo(f"{outcome} {answer['dag']} (version {answer['dag_version']}).")
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
    headings = ["job", "activation", "operator", "runtime", "outputs"]
    print_rows(headings, rows, wide=["activation", "runtime"])
    if answer["changed"]:
        print_plan(answer["plan"])
