"""`trace graph`, `trace versions`: show how the jobs of a DAG are connected, and its versions."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, quote_segment, session
from trace_etl.cli.dags.plans import print_plan
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    AfterOption,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
)
from trace_etl.cli.output import format_time, print_answer, print_rows

DagArgument = Annotated[str, typer.Argument(metavar="DAG", help="Name of the DAG.")]
_VERSIONS = ListTable(
    {
        "version": itemgetter("dag_version"),
        "first deployed": lambda item: format_time(item["created_at"]),
        "current": lambda item: "yes" if item["is_current"] else None,
    },
    empty="No versions.",
    next_command="trace versions",
)


def graph(
    dag: DagArgument,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the jobs of a DAG and their inputs."""
    with session(home) as client:
        answer = client.get(f"/v1/dags/{quote_segment(dag)}/graph")
    print_answer(answer, as_json, lambda found: _print_graph(found, dag))


def versions(
    dag: DagArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="Print the text of this version.")
    ] = None,
    other: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="Print what a deploy of this one over it would do."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    limit: LimitOption = 100,
    after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the versions of a DAG, or compare two.

    One VERSION prints its text. With OTHER too, print what a deploy of OTHER over VERSION would do.
    """
    path = f"/v1/dags/{quote_segment(dag)}/versions"
    if version is None:
        print_list(home, path, _VERSIONS, as_json=as_json, limit=limit, after=after)
        return
    with session(home) as client:
        answer = client.get(f"{path}/{quote_segment(other or version)}")
        if other is not None:
            body = {"text": answer["text"], "from_version": version}
            answer = client.post("/v1/plans", body)
    if other is None:
        print_answer(answer, as_json, lambda found: typer.echo(found["text"], nl=False))
    else:
        print_answer(answer, as_json, lambda found: print_plan(found["plan"]))


def _print_graph(answer: Answer, dag: str) -> None:
    def name(of_dag: str, job: str) -> str:
        return job if of_dag == dag else f"{of_dag}.{job}"

    inputs: dict[tuple[str, str], list[str]] = {}
    for edge in answer["edges"]:
        source = f"{name(edge['from_dag'], edge['from_job'])}.{edge['output']}"
        inputs.setdefault((edge["to_dag"], edge["to_job"]), []).append(source)
    rows = [_make_row(node, name, inputs) for node in answer["nodes"]]
    headings = ["job", "operator", "reads", "queued", "running", "failed", "paused by"]
    print_rows(headings, rows, right=["queued", "running", "failed"], wide=["operator"])


def _make_row(node: Answer, name: Any, inputs: dict[tuple[str, str], list[str]]) -> list[object]:
    reads = ", ".join(inputs.get((node["dag"], node["job"]), [])) or None
    return [
        name(node["dag"], node["job"]),
        node["operator"],
        reads,
        node["queued"],
        node["running"],
        node["failed"],
        node["paused_by"],
    ]
