"""`trace watch`: print changes as they happen. Other commands use the stream to wait."""

import json
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trace_etl.cli.client import NotRunning, RequestRejected, StackClient, read_problem, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, OneDagArgument
from trace_etl.cli.output import format_time

if TYPE_CHECKING:
    import httpx

_STREAM_TIMEOUT = 45.0  # three missed heartbeats of the stream
_RECONNECT_DELAY = 1.0
_MAX_SIGNAL_INTERVAL = 1.0
_MIN_SIGNAL_INTERVAL = 0.1


@dataclass(frozen=True)
class StreamEvent:
    """An event of the change stream. `ready`: the stream is open; `reset`: events were lost."""

    kind: str
    data: dict[str, Any]
    id: str


@dataclass
class ChangeStream:
    """Reads the change stream. After an interruption, it resumes after the last event."""

    client: StackClient
    dag: str | None = None
    kinds: list[str] = field(default_factory=list[str])
    _last_id: str = ""

    def events(self, *, max_failures: int | None = None) -> Generator[StreamEvent | None]:
        """Yield events as they arrive, None for a heartbeat. Raises RequestRejected or NotRunning.

        Reconnects after up to `max_failures` interruptions in a row; None means without limit.
        """
        failures = 0
        while True:
            try:
                for event in self._read_stream():
                    failures = 0
                    yield event
            except NotRunning:
                failures += 1
                if max_failures is not None and failures > max_failures:
                    raise
            time.sleep(_RECONNECT_DELAY)

    def _read_stream(self) -> Generator[StreamEvent | None]:
        import httpx

        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        params: dict[str, Any] = {"kind": self.kinds} | ({"dag": self.dag} if self.dag else {})
        url = f"{self.client.api_url}/v1/changes"
        try:
            with self.client.http.stream(
                "GET", url, params=params, headers=headers, timeout=_STREAM_TIMEOUT
            ) as reply:
                _check_status(reply)
                for event in _parse_events(reply.iter_lines()):
                    self._last_id = event.id if event else self._last_id
                    yield event
        except httpx.HTTPError as error:
            raise NotRunning(f"the stream {url} ended: {error!r}") from error
        except RuntimeError as error:  # the command has ended while this thread reconnects
            if not self.client.http.is_closed:
                raise
            raise NotRunning("the client was closed") from error


def _check_status(reply: "httpx.Response") -> None:
    if reply.is_error:
        reply.read()
        if reply.status_code == 503:
            raise NotRunning(str(read_problem(reply).get("detail")))
        raise RequestRejected(reply.status_code, read_problem(reply))


def _parse_events(lines: Iterator[str]) -> Generator[StreamEvent | None]:
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            yield None
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            data = cast(dict[str, Any], json.loads(fields["data"]))
            yield StreamEvent(fields["event"], data, fields["id"])
            fields = {}


@contextmanager
def change_signals(
    client: StackClient, dag: str | None = None, *, max_interval: float = _MAX_SIGNAL_INTERVAL
) -> Generator[Iterator[None]]:
    """Signal immediately, shortly after each change of the DAG, and at least every `max_interval` seconds.

    Commands that show counts read them again at each signal instead of polling.
    """
    changed, is_closed = threading.Event(), threading.Event()

    def read_stream() -> None:
        try:
            for _ in ChangeStream(client, dag).events(max_failures=0):
                changed.set()
                if is_closed.is_set():
                    return
        except (NotRunning, RequestRejected):
            changed.set()  # the caller's next request also fails, and reports the error

    # A daemon thread: it may block in a read until the next heartbeat, and the program must not wait.
    threading.Thread(target=read_stream, name="changes", daemon=True).start()
    try:
        yield _throttle(changed, max_interval)
    finally:
        is_closed.set()


def _throttle(changed: threading.Event, max_interval: float) -> Iterator[None]:
    while True:
        changed.clear()
        began = time.monotonic()
        yield None
        # One signal for a burst of changes. The caller's requests take at most half the time.
        pause = max(_MIN_SIGNAL_INTERVAL, time.monotonic() - began)
        changed.wait(max_interval)
        time.sleep(pause)


def watch(
    dag: OneDagArgument = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only task, dataset, deploy, rollout or pause. Repeatable."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Print changes as they happen, until Ctrl-C.

    With --json, prints one JSON object per line.
    """
    with session(home) as client:
        try:
            for event in ChangeStream(client, dag, kind or []).events():
                if event is not None:
                    _print_event(event, as_json)
        except KeyboardInterrupt:
            return


def _print_event(event: StreamEvent, as_json: bool) -> None:
    if as_json:
        line = {"kind": event.kind, "id": event.id, **event.data}
        typer.echo(json.dumps(line, ensure_ascii=False))
    elif event.kind == "ready":
        typer.echo("Watching; press Ctrl-C to stop.", err=True)
    elif event.kind == "reset":
        typer.echo("Some changes were missed; `trace tasks` shows the current state.", err=True)
    else:
        typer.echo(_format_event(event))


def _format_event(event: StreamEvent) -> str:
    data = event.data
    subject = data["dag"] + (f".{data['job']}" if data.get("job") else "")
    details = _format_details(event.kind, data)
    return f"{format_time(data.get('at'))}  {event.kind:<7}  {subject}  {details}"


def _format_details(kind: str, data: dict[str, Any]) -> str:
    if kind == "task":
        scope = data["partition_key"] or (f"cursor {data['cursor']}" if data["cursor"] else "")
        is_lost = data["status"] in ("Failed", "Canceled")
        reason = f": {data['error_message']}" if is_lost and data["error_message"] else ""
        return f"{scope} {data['status']} (attempt {data['attempt']}){reason}".strip()
    if kind == "dataset":
        name = data["dataset"] or data["output"]
        return f"{name} {data['partition_key']}: {data['row_count']} rows"
    if kind == "pause":
        tier = " for bulk work" if data["tier"] == "bulk" else ""
        return f"{'paused' if data['paused'] else 'resumed'}{tier} by {data['by']}"
    if kind == "rollout":
        return f"{data['state']} (version {data['dag_version']})"
    return f"version {data['dag_version']}"
