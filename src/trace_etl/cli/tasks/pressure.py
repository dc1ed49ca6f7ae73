"""`trace pause`, `trace resume`, `trace pressure`."""

from typing import Annotated, Any

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_json, print_rows, took

DagArgument = Annotated[str, typer.Argument(metavar="DAG", help="The DAG's name.")]
JobArgument = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="One job of it; without, all of them.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(pause)
    app.command()(resume)
    app.command()(pressure)


def pause(
    dag: DagArgument,
    job: JobArgument = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever wonders.")] = "",
    bulk: Annotated[bool, typer.Option("--bulk", help="Hold bulk work only.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Stop creating and starting tasks of a job or a DAG; what runs, runs on."""
    body = {"dag": dag, "job": job, "reason": reason, "tier": "bulk" if bulk else "normal"}
    with session(home) as client:
        answer = client.post("/v1/pauses", body)
    if as_json:
        print_json(answer)
        return
    what = "bulk work of " if bulk else ""
    typer.echo(
        f"Paused {what}{', '.join(answer['jobs'])}. Nothing is lost; `trace resume` ends it."
    )


def resume(
    dag: DagArgument,
    job: JobArgument = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Let paused jobs go on."""
    with session(home) as client:
        answer = client.post("/v1/pauses/resume", {"dag": dag, "job": job})
    if as_json:
        print_json(answer)
        return
    jobs: list[str] = answer["jobs"]
    typer.echo(f"Resumed {', '.join(jobs)}." if jobs else "Nobody had paused it.")
    for held in answer["still_paused"]:
        typer.echo(f"{held['job']} still waits for {held['by']}.")


def pressure(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show who waits for whom, the queues that have limits, and what runs of each operator."""
    with session(home) as client:
        answer = client.get("/v1/pressure")
        answer["pauses"] = _all_pauses(client.get)
    if as_json:
        print_json(answer)
    else:
        _print_pressure(answer)


def _all_pauses(get: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page: dict[str, Any] = get("/v1/pauses", limit=1000, after=after)
        items += page["items"]
        after = page["next"]
        if after is None:
            return items


def _print_pressure(answer: dict[str, Any]) -> None:
    if answer["pauses"]:
        print_rows(
            ["paused", "what", "by", "why", "since"],
            [
                [
                    f"{p['dag']}.{p['job']}",
                    "bulk work" if p["tier"] == "bulk" else "all work",
                    p["by"],
                    p["reason"] or None,
                    local_time(p["since"]),
                ]
                for p in answer["pauses"]
            ],
        )
    else:
        typer.echo("Nothing is paused.")
    if answer["queues"]:
        _print_queues(answer["queues"])
    if answer["operators"]:
        print_rows(
            ["operator", "queued", "running", "at most"],
            [[o["operator"], o["queued"], o["running"], o["cap"]] for o in answer["operators"]],
            right=["queued", "running", "at most"],
        )
    if answer["deferred_events"]:
        typer.echo(f"{answer['deferred_events']} events wait for a paused job to go on.")


def _print_queues(queues: list[dict[str, Any]]) -> None:
    print_rows(
        ["queue", "normal", "bulk", "limit", "oldest", "oldest at most", "sheds upstream"],
        [
            [
                f"{q['dag']}.{q['job']}",
                q["normal"],
                q["bulk"],
                q["max_queue_depth"],
                took(q["oldest_queued_at"], None),
                q["max_queue_age"] and f"{q['max_queue_age']} s",
                {"bulk": "bulk work", "normal": "all work"}.get(q["sheds"]),
            ]
            for q in queues
        ],
        right=["normal", "bulk", "limit"],
    )
