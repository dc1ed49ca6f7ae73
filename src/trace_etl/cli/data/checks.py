"""`trace checks`, `trace accept`."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, LimitOption, WideOption
from trace_etl.cli.output import format_count, format_job, format_number, format_time, print_answer

_DATASET_HELP = "Published name, or an output as dag.job.output."


def checks(
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help=f"{_DATASET_HELP} Default: all.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Only of this partition: 0-999.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only checks that failed.")] = False,
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List results of data checks, newest first."""
    print_list(
        home,
        "/v1/checks",
        _CHECKS,
        as_json=as_json,
        dataset=dataset,
        partition_key=partition,
        failed=failed or None,
        limit=limit,
    )


def accept(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help=_DATASET_HELP)],
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="Key: 0-999.")],
    check: Annotated[str | None, typer.Option(help="Only this check. Default: all.")] = None,
    reason: Annotated[str, typer.Option(help="Reason, shown to other users.")] = "",
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Accept failed checks of a partition.

    Jobs that wait for the partition read it.
    """
    body = {"dataset": dataset, "partition_key": partition, "check": check, "reason": reason}
    with session(home) as client:
        answer = client.post("/v1/checks/accept", body)
    print_answer(answer, as_json, _print_accepted)


def _print_accepted(answer: Answer) -> None:
    released = format_count(answer["released_jobs"], "job")
    typer.echo(f"Accepted: {', '.join(answer['checks'])}. {released} no longer held.")


def _format_finding(item: dict[str, Any]) -> str | None:
    if item["accepted_by"]:
        return f"accepted by {item['accepted_by']}: {item['accept_reason'] or item['message']}"
    return item["message"] or None


_CHECKS = ListTable(
    {
        "checked": lambda item: format_time(item["checked_at"]),
        "dataset": lambda item: item["dataset"] or f"{format_job(item)}.{item['output']}",
        "partition": itemgetter("partition_key"),
        "check": itemgetter("check"),
        "state": itemgetter("state"),
        "failing": lambda item: format_number(item["failing_rows"]),
        "finding": _format_finding,
    },
    empty="No results of checks.",
    right=["failing"],
)
