"""`trace lineage`."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, quote_segment, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import format_id, format_job, print_answer, print_fields, print_rows


def lineage(
    subject: Annotated[
        str,
        typer.Argument(metavar="NAME[@PARTITION]", help="Dataset, or one partition: logs@0-999."),
    ],
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the inputs and consumers of a dataset."""
    name, _, partition = subject.partition("@")
    path = f"/v1/datasets/{quote_segment(name)}/lineage"
    with session(home) as client:
        answer = client.get(f"{path}/{quote_segment(partition)}" if partition else path)
    print_answer(answer, as_json, _print_partition if partition else _print_dataset)


def _print_dataset(answer: Answer) -> None:
    print_fields(
        {
            "dataset": answer["dataset"],
            "version": answer["dataset_version"],
            "made by": ", ".join(answer["producers"]),
        }
    )
    rows = [["input", *_list_origin(item)] for item in reversed(answer["up"])]
    rows += [["consumer", *_list_origin(item)] for item in answer["down"]]
    if rows:
        print_rows(["", "steps", "dataset", "from"], rows, right=["steps"])
    else:
        typer.echo("The dataset has no inputs and no consumers.")


def _print_partition(answer: Answer) -> None:
    print_fields(
        {
            "dataset": answer["dataset"],
            "version": answer["dataset_version"],
            "partition": answer["partition_key"],
            "made by": f"task {answer['task_id']}, attempt {answer['attempt']}",
        }
    )
    rows = [["input", *_list_link(item)] for item in reversed(answer["up"])]
    rows += [["consumer", *_list_link(item)] for item in answer["down"]]
    if rows:
        headings = ["", "steps", "dataset", "from", "partition", "task", "attempt", "state"]
        print_rows(headings, rows, right=["steps"], wide=["from", "attempt"])
    else:
        typer.echo("The partition has no input partitions and no consumers.")


def _list_origin(item: dict[str, Any]) -> list[object]:
    output = f"{format_job(item)}.{item['output']}"
    return [item["depth"], item["dataset"] or "(not published)", output]


def _list_link(item: dict[str, Any]) -> list[object]:
    key = "whole dataset" if item["partition_key"] == "*" else item["partition_key"]
    state = "current" if item["is_current"] else "rewritten since"
    return [*_list_origin(item), key, format_id(item["task_id"]), item["attempt"], state]
