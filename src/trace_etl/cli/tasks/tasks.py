"""`trace tasks`, `trace task`."""

import json
from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.ids import resolve_id
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
    Columns,
    format_elapsed,
    format_id,
    format_job,
    format_number,
    format_time,
    print_answer,
    print_fields,
    print_items,
)

TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="Id of the task, or its beginning.")
]
_MAX_REASON = 100
_UNLIMITED_ATTEMPTS = 1_000_000


def tasks(
    dag: Annotated[str | None, typer.Option(help="Only tasks of this DAG.")] = None,
    job: Annotated[str | None, typer.Option(help="Only tasks of this job.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Queued, Running, Completed, Failed or Canceled.")
    ] = None,
    invalidation: Annotated[
        str | None, typer.Option(help="Only tasks that build again what this invalidation marked.")
    ] = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List tasks, newest first."""
    print_list(
        home,
        "/v1/tasks",
        _TASKS,
        as_json=as_json,
        dag=dag,
        job=job,
        status=status.capitalize() if status else None,
        invalidation_id=invalidation,
        limit=limit,
        after=after,
    )


def task(
    task_id: TaskArgument,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one task and its attempts."""
    with session(home) as client:
        answer = client.get(f"/v1/tasks/{resolve_id(client, 'task', task_id)}")
    print_answer(answer, as_json, _print_task)


def _format_attempt(item: dict[str, Any], separator: str) -> str:
    # Always-on sources restart forever, so their maximum is not shown.
    is_unlimited = item["max_attempts"] >= _UNLIMITED_ATTEMPTS
    return str(item["attempt"]) + ("" if is_unlimited else f"{separator}{item['max_attempts']}")


def _format_run_time(item: dict[str, Any]) -> str:
    if item["status"] != "Running" and not item["finished_at"]:
        return "-"
    return format_elapsed(item["started_at"], item["finished_at"])


def _format_reason(item: dict[str, Any]) -> str:
    reason = " ".join(str(item["reason"] or item["error_message"] or "").split())
    return reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 1]}…"


_TASKS = ListTable(
    {
        "task": lambda item: format_id(item["task_id"]),
        "job": format_job,
        "blocks": itemgetter("partition_key"),
        "status": itemgetter("status"),
        "attempt": lambda item: _format_attempt(item, "/"),
        "worker": itemgetter("worker_id"),
        "duration": _format_run_time,
        "reason": _format_reason,
    },
    empty="No tasks.",
    wide=["worker", "duration"],
    next_command="trace tasks",
)
_ATTEMPTS: Columns = {
    "attempt": itemgetter("attempt"),
    "outcome": itemgetter("outcome"),
    "worker": itemgetter("worker_id"),
    "started": lambda attempt: format_time(attempt["started_at"]),
    "duration": lambda attempt: format_elapsed(attempt["started_at"], attempt["ended_at"]),
    "reason": lambda attempt: attempt["error_message"] or attempt["cause"],
}
_OUTPUTS: Columns = {
    "attempt": itemgetter("attempt"),
    "output": itemgetter("output_index"),
    "location": itemgetter("location"),
    "partition": itemgetter("partition_key"),
    "cursor": itemgetter("cursor"),
    "rows": lambda output: format_number(output["row_count"]),
}


def _format_parameters(parameters: dict[str, Any] | None) -> str | None:
    if parameters is None:
        return None
    shown = {name: value for name, value in parameters.items() if value not in (None, False)}
    text = json.dumps(shown, ensure_ascii=False)
    return text if len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 1]}…"


def _number_lines(sql: str) -> str:
    """Number the lines of a SELECT, because errors name them."""
    lines = sql.rstrip().splitlines()
    width = len(str(len(lines)))
    return "\n".join(f"{number:>{width}}  {line}" for number, line in enumerate(lines, start=1))


def _print_task(item: Answer) -> None:
    definition = item["definition"]
    print_fields(
        {
            "task": item["task_id"],
            "job": format_job(item),
            "operator": item["operator"],
            "runtime": item["runtime"],
            "blocks": item["partition_key"],
            "payload": _format_parameters(item["parameters"]),
            "status": item["status"],
            "reason": item["reason"],
            "attempt": _format_attempt(item, " of "),
            "worker": item["worker_id"],
            "created": format_time(item["created_at"]),
            "started": item["started_at"] and format_time(item["started_at"]),
            "finished": item["finished_at"] and format_time(item["finished_at"]),
            "retry at": item["retry_at"] and format_time(item["retry_at"]),
            "error": item["error_message"],
            "definition": "current" if definition["is_current"] else "replaced by a deploy",
        }
    )
    if definition["config"].get("sql"):
        typer.echo("")
        typer.echo(_number_lines(definition["config"]["sql"]))
    if item["attempts"]:
        print_items(item["attempts"], _ATTEMPTS, wide=["worker"])
    outputs = [
        {"attempt": attempt["attempt"], **output}
        for attempt in item["attempts"]
        for output in attempt["outputs"]
    ]
    if outputs:
        print_items(outputs, _OUTPUTS)
