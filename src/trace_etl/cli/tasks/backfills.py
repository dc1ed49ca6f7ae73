"""`trace backfill` and `trace backfills`: create, list, follow, cancel and resume backfills."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, StackClient, fail, quote_segment, session
from trace_etl.cli.ids import resolve_id
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DagArgument,
    HomeOption,
    JsonOption,
    LimitOption,
    RangeOption,
    WideOption,
    parse_range,
)
from trace_etl.cli.output import (
    Columns,
    format_count,
    format_duration,
    format_id,
    format_job,
    format_number,
    format_time,
    print_answer,
    print_fields,
    print_items,
    print_json,
)
from trace_etl.cli.progress import show_counts

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the backfill, or its beginning.")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Show progress until the backfill ends.")]
_MAX_PREVIEW = 40
_ACTIONS = {
    "build": "to build",
    "rebuild": "to rebuild",
    "there": "already built",
    "no_input": "without input",
}

group = typer.Typer(invoke_without_command=True, help="List, cancel and resume backfills.")


def backfill(
    dag: DagArgument,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Name of a job with inputs, or of a manual source.")
    ],
    blocks: RangeOption,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Blocks per task. Default: the upstream split size.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Rebuild partitions that exist already.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the chunks and create nothing.")
    ] = False,
    wait: WaitOption = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Backfill a block range of a job.

    The tasks run in the bulk tier. Repeating the command with the same range returns the same
    backfill.
    """
    span = parse_range(blocks)
    body = {"dag": dag, "job": job, "start": span.start, "end": span.end}
    body |= {"chunk": chunk, "force": force}
    with session(home) as client:
        if dry_run:
            answer = client.post("/v1/backfills/preview", body)
            print_answer(answer, as_json, _print_preview)
            return
        answer = client.post("/v1/backfills", body)
        if not as_json:
            _print_created(answer)
        _finish_command(client, answer, wait=wait, as_json=as_json)


@group.callback()
def backfills(
    context: typer.Context,
    state: Annotated[
        str | None, typer.Option(help="running, complete, failed or canceled.")
    ] = None,
    limit: LimitOption = 20,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List backfills, newest first."""
    if context.invoked_subcommand is None:
        print_list(home, "/v1/backfills", _BACKFILLS, as_json=as_json, state=state, limit=limit)


@group.command()
def show(
    backfill_id: IdArgument,
    wait: WaitOption = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one backfill and its failed chunks."""
    with session(home) as client:
        path = _make_path(resolve_id(client, "backfill", backfill_id))
        answer = client.get(path)
        if not as_json:
            _print_backfill(answer)
            if failed := client.get(f"{path}/chunks", state="failed", limit=20)["items"]:
                print_items(failed, _FAILED_CHUNKS)
        _finish_command(client, answer, wait=wait, as_json=as_json)


@group.command()
def cancel(
    backfill_id: IdArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Cancel a backfill.

    Queued tasks end immediately. Running tasks are asked to stop.
    """
    with session(home) as client:
        answer = client.post(f"{_make_path(resolve_id(client, 'backfill', backfill_id))}/cancel")
    print_answer(answer, as_json, _print_canceled)


@group.command()
def resume(
    backfill_id: IdArgument,
    wait: WaitOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Retry the failed and canceled chunks."""
    with session(home) as client:
        answer = client.post(f"{_make_path(resolve_id(client, 'backfill', backfill_id))}/resume")
        if not as_json:
            typer.echo(f"Retrying {format_count(answer['chunks'], 'chunk')}.")
        _finish_command(client, answer, wait=wait, as_json=as_json)


def _make_path(backfill_id: str) -> str:
    return f"/v1/backfills/{quote_segment(backfill_id)}"


def _finish_command(client: StackClient, answer: Answer, *, wait: bool, as_json: bool) -> None:
    """Wait for the backfill if requested, print it, and exit with 1 if it did not complete."""
    if wait:
        answer = _wait_for_backfill(client, answer)
    if as_json:
        print_json(answer)
    elif wait:
        chunks = f"{answer['completed']}/{_count_chunks(answer)} chunks"
        typer.echo(f"{chunks}: {answer['state']}, {format_number(answer['rows_done'])} rows")
    if wait and answer["state"] != "complete":
        failed = f"{format_count(answer['failed'], 'chunk')} failed; " if answer["failed"] else ""
        fail([f"the backfill is {answer['state']}: {failed}{answer['why']}".rstrip("; ")])


def _wait_for_backfill(client: StackClient, answer: Answer) -> Answer:
    from trace_etl.cli.tasks.watch import change_signals

    with show_counts() as report, change_signals(client, answer["dag"]) as signals:
        for _ in signals:
            item = client.get(_make_path(answer["backfill_id"]))
            ended = sum(item[name] for name in ("completed", "failed", "canceled"))
            report("chunks", ended, _count_chunks(item), _describe_progress(item))
            if item["state"] != "running":
                return item
    raise AssertionError("the iterator of signals never ends")


def _describe_progress(item: Answer) -> str:
    if item["paused_by"]:
        return f"paused by {item['paused_by']}"
    rate = _format_rate(item) if item["blocks_per_second"] else ""
    failed = f"{item['failed']} failed" if item["failed"] else ""
    return ", ".join(part for part in (rate, failed) if part)


def _print_preview(answer: Answer) -> None:
    chunks: list[dict[str, Any]] = answer["chunks"]
    print_items(chunks[:_MAX_PREVIEW], _PREVIEW, right=["rows"])
    counts = {name: answer[name] for name in _ACTIONS}
    if (more := sum(counts.values()) - _MAX_PREVIEW) > 0:
        typer.echo(f"… and {more} more.")
    summary = ", ".join(f"{n} {_ACTIONS[name]}" for name, n in counts.items() if n)
    rows = "unknown number of" if answer["rows"] is None else f"about {answer['rows']:,}"
    fed_by = f", input from {answer['fed_by']}" if answer["fed_by"] else ""
    typer.echo(f"{summary}. {format_number(answer['blocks'])} blocks, {rows} rows{fed_by}.")


def _format_rows(chunk: dict[str, Any]) -> str:
    is_estimate = chunk["action"] == "build" and chunk["rows"] is not None
    return ("~" if is_estimate else "") + format_number(chunk["rows"])


def _print_created(answer: Answer) -> None:
    subject = f"{format_job(answer)} blocks {_format_blocks(answer)}"
    missing = answer["pending"] + answer["created"]
    if not answer["new"]:
        typer.echo(f"This backfill exists already: {answer['backfill_id']}.")
    elif not missing:
        typer.echo(f"{subject}: every chunk is built already.")
    else:
        chunks = format_count(missing, "chunk")
        typer.echo(f"Backfill {answer['backfill_id']}: {subject}, {chunks} to build.")
        typer.echo(f"Follow it with: trace backfills show {answer['backfill_id']} --wait")


def _print_canceled(answer: Answer) -> None:
    queued = answer["canceled_tasks"] - answer["asked_to_stop"]
    typer.echo(
        f"Canceled: {queued} queued tasks ended, {answer['asked_to_stop']} running tasks asked to stop."
    )


def _count_chunks(item: Answer) -> int:
    return sum(item[s] for s in ("pending", "created", "completed", "failed", "canceled"))


def _format_blocks(item: dict[str, Any]) -> str:
    return f"{item['start']}-{item['end']}"


def _format_rate(item: Answer) -> str:
    return f"{item['blocks_per_second']:,.1f} blocks/s"


def _format_time_left(item: Answer) -> str | None:
    if item["state"] != "running" or item["seconds_left"] is None:
        return None
    return format_duration(item["seconds_left"])


def _print_backfill(item: Answer) -> None:
    states = ("pending", "created", "completed", "failed", "canceled", "skipped")
    print_fields(
        {
            "backfill": item["backfill_id"],
            "job": format_job(item),
            "blocks": f"{_format_blocks(item)}, {item['chunk']} per chunk",
            "force": item["force"] or None,
            "state": item["state"],
            "reason": item["why"] or None,
            "paused by": item["paused_by"],
            "chunks": ", ".join(f"{item[name]} {name}" for name in states if item[name]),
            "rows": format_number(item["rows_done"]),
            "rate": _format_rate(item),
            "time left": _format_time_left(item),
            "created by": item["made_by"],
            "created": format_time(item["created_at"]),
            "ended": item["ended_at"] and format_time(item["ended_at"]),
        }
    )


_BACKFILLS = ListTable(
    {
        "backfill": lambda item: format_id(item["backfill_id"]),
        "job": format_job,
        "blocks": _format_blocks,
        "state": itemgetter("state"),
        "chunks": lambda item: f"{item['completed']}/{_count_chunks(item)}",
        "failed": itemgetter("failed"),
        "rate": lambda item: _format_rate(item) if item["state"] == "running" else None,
        "time left": _format_time_left,
        "created by": itemgetter("made_by"),
        "created": lambda item: format_time(item["created_at"]),
    },
    empty="No backfills.",
    right=["chunks", "failed", "rate"],
    wide=["rate", "created by", "created"],
)
_PREVIEW: Columns = {
    "blocks": _format_blocks,
    "action": lambda chunk: _ACTIONS[chunk["action"]],
    "rows": _format_rows,
}
_FAILED_CHUNKS: Columns = {
    "failed": _format_blocks,
    "task": lambda chunk: format_id(chunk["task_id"]),
    "error": itemgetter("error_message"),
}
