"""`trace backfill` and `trace backfills`: filling a range of a job, and watching that."""

from contextlib import nullcontext
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Client, fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import (
    duration,
    local_time,
    number,
    print_fields,
    print_json,
    print_rows,
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The backfill's id.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Show progress until it has ended.")]
_SHOWN = 40


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(backfill)
    group = typer.Typer(invoke_without_command=True, help="List, watch and end backfills.")
    group.callback()(backfills)
    group.command()(show)
    group.command()(cancel)
    group.command()(resume)
    app.add_typer(group, name="backfills")


def backfill(
    dag: Annotated[str, typer.Argument(metavar="DAG", help="The DAG's name.")],
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job of it that has inputs.")],
    blocks: Annotated[
        str, typer.Option("--range", metavar="START-END", help="Blocks, both ends included.")
    ],
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Blocks a task; by default as upstream splits them."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Rebuild what is there, too, as a rewrite.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
    wait: WaitOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Fill a range of a job, as bulk work. The same range again is the same backfill."""
    from trace_etl.model.errors import Invalid
    from trace_etl.model.scope import Range

    try:
        asked = Range.parse(blocks)
    except Invalid as wrong:
        fail([f"--range: {fault.message}" for fault in wrong.faults])
    body = {"dag": dag, "job": job, "start": asked.start, "end": asked.end}
    body |= {"chunk": chunk, "force": force}
    with session(home) as client:
        if dry_run:
            answer = client.post("/v1/backfills/preview", body)
            print_json(answer) if as_json else _print_preview(answer)
            return
        answer = client.post("/v1/backfills", body)
        if not as_json:
            _print_created(answer)
        _after(client, answer, wait=wait, as_json=as_json)


def backfills(
    context: typer.Context,
    state: Annotated[
        str | None, typer.Option(help="running, complete, failed or canceled.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List backfills, newest first."""
    if context.invoked_subcommand is not None:
        return
    with session(home) as client:
        answer = client.get("/v1/backfills", state=state, limit=limit)
    if as_json:
        print_json(answer)
    elif not answer["items"]:
        typer.echo("No backfills.")
    else:
        _print_list(answer["items"])


def show(
    backfill_id: IdArgument,
    wait: WaitOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show one backfill: how far it is, how fast, and what failed."""
    with session(home) as client:
        answer = client.get(f"/v1/backfills/{backfill_id}")
        if not as_json:
            failed = client.get(f"/v1/backfills/{backfill_id}/chunks", state="failed", limit=20)
            _print_one(answer, failed["items"])
        _after(client, answer, wait=wait, as_json=as_json)


def cancel(
    backfill_id: IdArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """End a backfill: what waits is canceled, what runs is asked to stop."""
    with session(home) as client:
        answer = client.post(f"/v1/backfills/{backfill_id}/cancel")
    if as_json:
        print_json(answer)
        return
    waited = answer["canceled_tasks"] - answer["asked_to_stop"]
    typer.echo(f"Canceled; {waited} waiting tasks ended, {answer['asked_to_stop']} asked to stop.")


def resume(
    backfill_id: IdArgument,
    wait: WaitOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Try again what failed or was canceled."""
    with session(home) as client:
        answer = client.post(f"/v1/backfills/{backfill_id}/resume")
        if not as_json:
            typer.echo(f"Trying {_chunks(answer['chunks'])} again.")
        _after(client, answer, wait=wait, as_json=as_json)


def _after(client: Client, answer: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """Follow a backfill if asked to; one that did not succeed ends the program with 1."""
    if wait:
        answer = _follow(client, answer, quiet=as_json)
    if as_json:
        print_json(answer)
    if wait and answer["state"] != "complete":
        failed = f"{_chunks(answer['failed'])} failed; " if answer["failed"] else ""
        fail([f"the backfill is {answer['state']}: {failed}{answer['why']}".rstrip("; ")])


def _follow(client: Client, answer: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    from rich.console import Console

    from trace_etl.cli.tasks.watch import signals

    console = Console(highlight=False)
    status = console.status("looking") if console.is_terminal and not quiet else nullcontext()
    with status as bar, signals(client, answer["dag"]) as news:
        said: object = None
        for _ in news:
            item = client.get(f"/v1/backfills/{answer['backfill_id']}")
            if bar is not None:
                bar.update(_progress(item))
            moved = [item[name] for name in ("state", "completed", "failed", "paused_by")]
            if not quiet and moved != said and (bar is None or item["state"] != "running"):
                typer.echo(f"  {_progress(item)}")
                said = moved
            if item["state"] != "running":
                return item
    raise AssertionError("signals never end")


def _progress(item: dict[str, Any]) -> str:
    total = item["pending"] + item["created"] + item["completed"] + item["failed"]
    words = f"{item['completed']}/{total + item['canceled']} chunks"
    if item["failed"]:
        words += f", {item['failed']} failed"
    if item["state"] != "running":
        return f"{words}: {item['state']}, {number(item['rows_done'])} rows"
    if item["paused_by"]:
        return f"{words}: paused by {item['paused_by']}"
    if item["blocks_per_second"]:
        words += f", {item['blocks_per_second']:,.1f} blocks/s"
    return (
        words if item["seconds_left"] is None else f"{words}, {duration(item['seconds_left'])} left"
    )


def _print_preview(answer: dict[str, Any]) -> None:
    chunks: list[dict[str, Any]] = answer["chunks"]
    print_rows(
        ["blocks", "what", "rows"],
        [[f"{c['start']}-{c['end']}", _WHAT[c["action"]], _rows(c)] for c in chunks[:_SHOWN]],
        right=["rows"],
    )
    counts = [(name, answer[name]) for name in ("build", "rebuild", "there", "no_input")]
    if sum(n for _, n in counts) > _SHOWN:
        typer.echo(f"… and {sum(n for _, n in counts) - _SHOWN} more.")
    told = ", ".join(f"{n} {_WHAT[name]}" for name, n in counts if n)
    rows = (
        "nobody can tell how many" if answer["rows"] is None else f"about {number(answer['rows'])}"
    )
    fed = f", fed by {answer['fed_by']}" if answer["fed_by"] else ""
    typer.echo(f"{told}. {number(answer['blocks'])} blocks, {rows} rows{fed}.")


_WHAT = {"build": "to build", "rebuild": "to rebuild", "there": "there", "no_input": "not upstream"}


def _chunks(count: int) -> str:
    return "1 chunk" if count == 1 else f"{number(count)} chunks"


def _rows(chunk: dict[str, Any]) -> str:
    if chunk["rows"] is None:
        return "-"
    return number(chunk["rows"]) if chunk["action"] != "build" else f"~{number(chunk['rows'])}"


def _print_created(answer: dict[str, Any]) -> None:
    what = f"{answer['dag']}.{answer['job']} blocks {answer['start']}-{answer['end']}"
    to_do = answer["pending"] + answer["created"]
    if not answer["new"]:
        typer.echo(f"The same backfill was asked for before: {answer['backfill_id']}.")
    elif not to_do:
        typer.echo(f"{what}: all there, nothing to do.")
    else:
        typer.echo(f"Backfill {answer['backfill_id']}: {what}, {_chunks(to_do)} to build.")
        typer.echo(f"Watch it with: trace backfills show {answer['backfill_id']} --wait")


def _print_list(items: list[dict[str, Any]]) -> None:
    print_rows(
        ["backfill", "job", "blocks", "state", "chunks", "failed", "rate", "left", "by", "since"],
        [
            [
                item["backfill_id"],
                f"{item['dag']}.{item['job']}",
                f"{item['start']}-{item['end']}",
                item["state"],
                f"{item['completed']}/{_to_do(item)}",
                item["failed"],
                f"{item['blocks_per_second']:,.1f}/s" if item["state"] == "running" else None,
                _left(item),
                item["made_by"],
                local_time(item["created_at"]),
            ]
            for item in items
        ],
        right=["chunks", "failed", "rate"],
    )


def _to_do(item: dict[str, Any]) -> int:
    return sum(item[s] for s in ("pending", "created", "completed", "failed", "canceled"))


def _left(item: dict[str, Any]) -> str | None:
    if item["state"] != "running" or item["seconds_left"] is None:
        return None
    return duration(item["seconds_left"])


def _print_one(item: dict[str, Any], failed: list[dict[str, Any]]) -> None:
    counts = ("pending", "created", "completed", "failed", "canceled", "skipped")
    print_fields(
        {
            "backfill": item["backfill_id"],
            "job": f"{item['dag']}.{item['job']}",
            "blocks": f"{item['start']}-{item['end']}, {item['chunk']} a chunk",
            "force": item["force"] or None,
            "state": item["state"],
            "why": item["why"] or None,
            "paused by": item["paused_by"],
            "chunks": ", ".join(f"{item[name]} {name}" for name in counts if item[name]),
            "rows": number(item["rows_done"]),
            "rate": f"{item['blocks_per_second']:,.1f} blocks/s",
            "left": _left(item),
            "by": item["made_by"],
            "created": local_time(item["created_at"]),
            "ended": item["ended_at"] and local_time(item["ended_at"]),
        }
    )
    if failed:
        print_rows(
            ["failed", "task", "why"],
            [[f"{c['start']}-{c['end']}", c["task_id"], c["error_message"]] for c in failed],
        )
