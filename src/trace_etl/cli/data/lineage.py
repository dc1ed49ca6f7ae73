"""`trace lineage`."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_fields, print_json, print_rows


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(lineage)


def lineage(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@PARTITION]", help="A published dataset, or one partition: logs@0-999."
        ),
    ],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show what a dataset or a partition was made from, and what was made from it."""
    name, _, partition = what.partition("@")
    path = f"/v1/datasets/{quote(name, safe='')}/lineage"
    with session(home) as client:
        answer = client.get(f"{path}/{quote(partition, safe='')}" if partition else path)
    if as_json:
        print_json(answer)
    elif partition:
        _print_partition(answer)
    else:
        _print_dataset(answer)


def _print_dataset(answer: dict[str, Any]) -> None:
    print_fields(
        {
            "dataset": answer["dataset"],
            "version": answer["dataset_version"],
            "made by": ", ".join(answer["producers"]),
        }
    )
    rows = [["made from", *_origin(item)] for item in reversed(answer["up"])]
    rows += [["goes into", *_origin(item)] for item in answer["down"]]
    if rows:
        print_rows(["", "steps", "dataset", "from"], rows, right=["steps"])
    else:
        typer.echo("Nothing goes in, and nothing is made from it.")


def _print_partition(answer: dict[str, Any]) -> None:
    print_fields(
        {
            "dataset": answer["dataset"],
            "version": answer["dataset_version"],
            "partition": answer["partition_key"],
            "made by": f"task {answer['task_id']}, attempt {answer['attempt']}",
        }
    )
    rows = [["made from", *_link(item)] for item in reversed(answer["up"])]
    rows += [["went into", *_link(item)] for item in answer["down"]]
    if rows:
        headings = ["", "steps", "dataset", "from", "partition", "task", "attempt", "now"]
        print_rows(headings, rows, right=["steps"])
    else:
        typer.echo("It was made from no partition, and no partition was made from it.")


def _origin(item: dict[str, Any]) -> list[object]:
    place = f"{item['dag']}.{item['job']}.{item['output']}"
    return [item["depth"], item["dataset"] or "(not published)", place]


def _link(item: dict[str, Any]) -> list[object]:
    key = "all of it" if item["partition_key"] == "*" else item["partition_key"]
    now = "current" if item["is_current"] else "rewritten since"
    return [*_origin(item), key, item["task_id"], item["attempt"], now]
