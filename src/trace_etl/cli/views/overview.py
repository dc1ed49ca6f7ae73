"""`trace overview`, `trace failures`: sum up the state of the stack."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.listing import ListTable, print_list_answer
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import (
    format_count,
    format_id,
    format_job,
    format_number,
    format_time,
    print_answer,
    print_fields,
    print_rows,
)

_FAILURES = ListTable(
    {
        "job": format_job,
        "error": itemgetter("error_code"),
        "tasks": lambda group: format_number(group["tasks"]),
        "last task": lambda group: format_id(group["task_id"]),
        "last": lambda group: format_time(group["newest_at"]),
        "message": itemgetter("error_message"),
    },
    empty="No task failed permanently.",
    right=["tasks"],
    wide=["last"],
)


def overview(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show health, task counts and chain lags."""
    with session(home) as client:
        answer = client.get("/v1/overview")
    print_answer(answer, as_json, _print_overview)


def failures(
    dag: Annotated[str | None, typer.Option(help="Only this DAG.")] = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Group failed tasks by job and error.

    `trace retry` runs the tasks of a group again.
    """
    with session(home) as client:
        answer = client.get("/v1/failures", dag=dag)
    print_list_answer(answer, _FAILURES, as_json=as_json)


def _print_overview(answer: Answer) -> None:
    last_hour = f"{format_number(answer['completed_last_hour'])} completed"
    last_hour += f", {format_number(answer['failed_last_hour'])} failed"
    print_fields(
        {
            "health": "everything is healthy" if answer["is_healthy"] else "needs attention",
            "DAGs": answer["dags"],
            "jobs": f"{answer['jobs']} ({answer['paused']} paused)",
            "running": format_number(answer["running"]),
            "queued": format_number(answer["queued"]),
            "retrying": format_number(answer["retrying"]),
            "failed": format_number(answer["failed"]),
            "last hour": last_hour,
            "side effects that failed": answer["outbox_failed"],
            "batches that failed": answer["batches_failed"],
        }
    )
    if answer["chains"]:
        typer.echo("")
        rows = [
            [
                format_job(chain),
                chain["status"],
                format_number(_find_position(chain)),
                format_number(chain["head"]),
                _format_lag(chain),
                format_time(chain["advanced_at"]),
                chain["reason"],
            ]
            for chain in answer["chains"]
        ]
        headings = ["source", "status", "position", "head", "lag", "advanced", "error"]
        print_rows(headings, rows, right=["position", "head", "lag"])
    if answer["problems"]:
        typer.echo("")
        print_rows(["problems"], [[problem["message"]] for problem in answer["problems"]])


def _find_position(chain: dict[str, Any]) -> int | None:
    return chain["cursor"] if chain["position"] is None else chain["position"]


def _format_lag(chain: dict[str, Any]) -> str | None:
    if chain["lag_blocks"] is None:
        return None
    blocks = format_count(chain["lag_blocks"], "block")
    return f"{blocks}, {chain['lag_seconds']:,} s" if chain["lag_seconds"] else blocks
