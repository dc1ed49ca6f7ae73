"""`trace watch`: what happens, as it happens; and how other commands wait for something."""

import json
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trace_etl.cli.client import Client, NotRunning, Refused, problem_of, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time

if TYPE_CHECKING:
    import httpx

_SILENCE = 45.0  # three heartbeats of the stream: nobody is there any more
_PAUSE = 1.0
_QUIET = 1.0
_BURST = 0.1


@dataclass(frozen=True)
class Change:
    """An event of the stream. `ready`: listening from here on; `reset`: some were lost."""

    kind: str
    data: dict[str, Any]
    id: str


@dataclass
class Follower:
    """Follows the stream over every interruption, from where it stopped."""

    client: Client
    dag: str | None = None
    kinds: list[str] = field(default_factory=list[str])
    _last: str = ""

    def changes(self, *, tries: int | None = None) -> Generator[Change | None]:
        """Changes as they come; None for a sign of life. Raises Refused or NotRunning.

        `tries` interruptions in a row are endured; None: any number.
        """
        failures = 0
        while True:
            try:
                for change in self._listen():
                    failures = 0
                    yield change
            except NotRunning:
                failures += 1
                if tries is not None and failures > tries:
                    raise
            time.sleep(_PAUSE)

    def _listen(self) -> Generator[Change | None]:
        import httpx

        headers = {"Last-Event-ID": self._last} if self._last else {}
        params: dict[str, Any] = {"kind": self.kinds} | ({"dag": self.dag} if self.dag else {})
        url = f"{self.client.api_url}/v1/changes"
        try:
            with self.client.http.stream(
                "GET", url, params=params, headers=headers, timeout=_SILENCE
            ) as reply:
                _check(reply)
                for change in _parsed(reply.iter_lines()):
                    self._last = change.id if change else self._last
                    yield change
        except httpx.HTTPError as error:
            raise NotRunning(f"{url} went silent: {error!r}") from error


def _check(reply: "httpx.Response") -> None:
    if reply.is_error:
        reply.read()
        if reply.status_code == 503:
            raise NotRunning(str(problem_of(reply).get("detail")))
        raise Refused(reply.status_code, problem_of(reply))


def _parsed(lines: Iterator[str]) -> Generator[Change | None]:
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            yield None
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            data = cast(dict[str, Any], json.loads(fields["data"]))
            yield Change(fields["event"], data, fields["id"])
            fields = {}


@contextmanager
def signals(client: Client, dag: str) -> Generator[Iterator[None]]:
    """A signal at once, soon after every burst of changes of a DAG, and every second at least.

    For commands that show counts: they count anew at each signal instead of polling.
    """
    news, done = threading.Event(), threading.Event()

    def listen() -> None:
        try:
            for _ in Follower(client, dag).changes(tries=0):
                news.set()
                if done.is_set():
                    return
        except (NotRunning, Refused):
            news.set()  # the count that follows finds out, and says it better

    # A daemon: it sits in a read until the stream's next sign of life, and nobody waits for that.
    threading.Thread(target=listen, name="changes", daemon=True).start()
    try:
        yield _signals(news)
    finally:
        done.set()


def _signals(news: threading.Event) -> Iterator[None]:
    while True:
        news.clear()
        began = time.monotonic()
        yield None
        # What comes together is counted together, and counting never takes more than half the time.
        pause = max(_BURST, time.monotonic() - began)
        news.wait(_QUIET)
        time.sleep(pause)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(watch)


def watch(
    dag: Annotated[str | None, typer.Argument(metavar="[DAG]", help="Only of this DAG.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only task, dataset, deploy, rollout or pause; may be repeated."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show what happens as it happens, until interrupted. With --json, one object a line."""
    with session(home) as client:
        try:
            for change in Follower(client, dag, kind or []).changes():
                if change is not None:
                    _print(change, as_json)
        except KeyboardInterrupt:
            return


def _print(change: Change, as_json: bool) -> None:
    if as_json:
        line = {"kind": change.kind, "id": change.id, **change.data}
        typer.echo(json.dumps(line, ensure_ascii=False))
    elif change.kind == "ready":
        typer.echo("Watching; press Ctrl-C to stop.", err=True)
    elif change.kind == "reset":
        typer.echo("Some changes were missed; `trace tasks` shows how things stand.", err=True)
    else:
        typer.echo(describe(change))


def describe(change: Change) -> str:
    """A change in one line."""
    data = change.data
    where = data["dag"] + (f".{data['job']}" if data.get("job") else "")
    return f"{local_time(data.get('at'))}  {change.kind:<7}  {where}  {_words(change.kind, data)}"


def _words(kind: str, data: dict[str, Any]) -> str:
    if kind == "task":
        scope = data["partition_key"] or (f"cursor {data['cursor']}" if data["cursor"] else "")
        is_over = data["status"] in ("Failed", "Canceled")
        why = f": {data['error_message']}" if is_over and data["error_message"] else ""
        return f"{scope} {data['status']} (attempt {data['attempt']}){why}".strip()
    if kind == "dataset":
        name = data["dataset"] or data["output"]
        return f"{name} {data['partition_key']}: {data['row_count']} rows"
    if kind == "pause":
        tier = " for bulk work" if data["tier"] == "bulk" else ""
        return f"{'paused' if data['paused'] else 'released'}{tier} by {data['by']}"
    if kind == "rollout":
        return f"{data['state']} (version {data['dag_version']})"
    return f"version {data['dag_version']}"
