"""`trace logs`."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from trace_etl.cli.client import Answer, StackClient, session
from trace_etl.cli.ids import resolve_id
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import print_json, print_note
from trace_etl.cli.tasks.tasks import TaskArgument

_POLL_SECONDS = 1.0
_TAIL_BYTES = 65_536


def logs(
    task_id: TaskArgument,
    attempt: Annotated[
        int | None, typer.Option(help="Number of the attempt. Default: the last one.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more until the task ends.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(min=1, metavar="LINES", help="Only the last lines of the attempt."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Print the output of a task.

    This is what its function printed, and the error of its operator. Secrets are masked, and at most
    1 MiB is kept per attempt.
    """
    with session(home) as client:
        path = f"/v1/tasks/{resolve_id(client, 'task', task_id)}/logs"
        start = 0
        if tail is not None:
            last = _read_tail(client, path, attempt, tail)
            if as_json:
                print_json(last)
            else:
                _print_parts(last)
            if not follow:
                return
            attempt, start = last["attempt"], last["next_start"]
        has_output = False
        for answer in _read(client, path, attempt, follow, start):
            has_output = True
            if as_json:
                print_json(answer)
            else:
                _print_parts(answer)
        if not has_output and tail is None:
            print_note("The task has printed nothing.")


def _read_tail(client: StackClient, path: str, attempt: int | None, lines: int) -> Answer:
    """Read backwards, window by window, until there are enough lines. Returns one answer with them."""
    answer = last = client.get(path, attempt=attempt, tail=_TAIL_BYTES)
    text = _join(answer)
    while answer["first"] > 0 and text.count("\n") <= lines:
        answer = client.get(path, attempt=last["attempt"], tail=_TAIL_BYTES, before=answer["first"])
        if not answer["parts"]:  # output was lost before this
            break
        text = _join(answer) + text
    kept = "".join(text.splitlines(keepends=True)[-lines:])
    if not kept:
        return last
    position = last["next_start"] - len(kept.encode())
    part = {"position": position, "text": kept, "logged_at": last["parts"][-1]["logged_at"]}
    return {**last, "parts": [part], "first": position}


def _join(answer: Answer) -> str:
    return "".join(part["text"] for part in answer["parts"])


def _read(
    client: StackClient, path: str, attempt: int | None, follow: bool, start: int
) -> Iterator[Answer]:
    """Yield answers with new output. Following goes on to the next attempt, unless one is named."""
    current = attempt
    while True:
        answer = client.get(path, attempt=current, start=start)
        if answer["parts"]:
            yield answer
            current, start = answer["attempt"], answer["next_start"]
            continue
        if attempt is None and answer["last_attempt"] > answer["attempt"]:
            current, start = answer["attempt"] + 1, 0
            continue
        is_over = answer["status"] not in ("Queued", "Running") or (
            attempt is not None and answer["last_attempt"] > attempt
        )
        if is_over or not follow:
            return
        time.sleep(_POLL_SECONDS)


def _print_parts(answer: Answer) -> None:
    if not answer["parts"]:
        return
    if answer["parts"][0]["position"] == 0 and answer["last_attempt"] > 1:
        typer.echo(f"--- attempt {answer['attempt']}", err=True)
    for part in answer["parts"]:
        typer.echo(_show_controls(part["text"]), nl=False)


def _show_controls(text: str) -> str:
    """Replace control characters: output of untrusted code must not control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
