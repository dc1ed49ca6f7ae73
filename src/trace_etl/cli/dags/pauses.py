"""`trace pause`, `trace resume`, `trace pressure`."""

from operator import itemgetter
from typing import Annotated

import typer

from trace_etl.cli.client import Answer, session
from trace_etl.cli.options import DEFAULT_HOME, DagArgument, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import (
    Columns,
    format_elapsed,
    format_job,
    format_time,
    print_answer,
    print_items,
)

OptionalJobArgument = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="Name of a job. Default: all jobs of the DAG.")
]


def pause(
    dag: DagArgument,
    job: OptionalJobArgument = None,
    reason: Annotated[str, typer.Option(help="Reason, shown to other users.")] = "",
    bulk: Annotated[bool, typer.Option("--bulk", help="Pause bulk work only.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Pause a DAG or one of its jobs.

    A paused job creates and starts no tasks. Running tasks continue.
    """
    body = {"dag": dag, "job": job, "reason": reason, "tier": "bulk" if bulk else "normal"}
    with session(home) as client:
        answer = client.post("/v1/pauses", body)
    subject = ("bulk work of " if bulk else "") + ", ".join(answer["jobs"])
    message = f"Paused {subject}. Events are kept; `trace resume` ends the pause."
    print_answer(answer, as_json, lambda _: typer.echo(message))


def resume(
    dag: DagArgument,
    job: OptionalJobArgument = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Resume paused jobs."""
    with session(home) as client:
        answer = client.post("/v1/pauses/resume", {"dag": dag, "job": job})
    print_answer(answer, as_json, _print_resumed)


def pressure(
    home: HomeOption = DEFAULT_HOME, wide: WideOption = False, as_json: JsonOption = False
) -> None:
    """Show pauses, queue limits and operator caps."""
    with session(home) as client:
        answer = client.get("/v1/pressure")
        answer["pauses"] = client.get_all("/v1/pauses")["items"]
    print_answer(answer, as_json, _print_pressure)


def _print_resumed(answer: Answer) -> None:
    jobs: list[str] = answer["jobs"]
    typer.echo(f"Resumed {', '.join(jobs)}." if jobs else "No job was paused by a user.")
    for pause in answer["still_paused"]:
        typer.echo(f"{pause['job']} is still paused by {pause['by']}.")


def _print_pressure(answer: Answer) -> None:
    if answer["pauses"]:
        print_items(answer["pauses"], _PAUSES)
    else:
        typer.echo("Nothing is paused.")
    if answer["queues"]:
        print_items(
            answer["queues"],
            _QUEUES,
            right=["normal", "bulk", "limit"],
            wide=["age limit", "pauses upstream"],
        )
    if answer["operators"]:
        print_items(answer["operators"], _OPERATORS, right=["queued", "running", "cap"])
    if answer["deferred_events"]:
        typer.echo(f"{answer['deferred_events']} events wait for paused jobs.")


_TIERS = {"bulk": "bulk work", "normal": "all work"}
_PAUSES: Columns = {
    "paused": format_job,
    "tier": lambda pause: _TIERS[pause["tier"]],
    "by": itemgetter("by"),
    "reason": lambda pause: pause["reason"] or None,
    "since": lambda pause: format_time(pause["since"]),
}
_QUEUES: Columns = {
    "queue": format_job,
    "normal": itemgetter("normal"),
    "bulk": itemgetter("bulk"),
    "limit": itemgetter("max_queue_depth"),
    "oldest": lambda queue: format_elapsed(queue["oldest_queued_at"], None),
    "age limit": lambda queue: queue["max_queue_age"] and f"{queue['max_queue_age']} s",
    "pauses upstream": lambda queue: _TIERS.get(queue["sheds"]),
}
_OPERATORS: Columns = {
    "operator": itemgetter("operator"),
    "queued": itemgetter("queued"),
    "running": itemgetter("running"),
    "cap": itemgetter("cap"),
}
