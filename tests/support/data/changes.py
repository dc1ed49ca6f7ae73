"""A client of the change stream that behaves like a browser."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    kind: str
    data: dict[str, Any]
    id: str


@dataclass
class ChangeStream:
    """Received events. A client that reconnects sends `last_id`."""

    events: Iterator[Event]
    last_id: str = ""

    def __next__(self) -> Event:
        event = next(self.events)
        self.last_id = event.id
        return event

    def until(self, kind: str, **fields: Any) -> list[Event]:
        """Return all events up to the first one of this kind with these fields."""
        events: list[Event] = []
        while True:
            events.append(next(self))
            last = events[-1]
            if last.kind == kind and all(last.data.get(k) == v for k, v in fields.items()):
                return events


@contextmanager
def following(client: httpx.Client, last_id: str = "", **params: Any) -> Generator[ChangeStream]:
    """Follow the change stream; it is connected when the block begins."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with client.stream("GET", "/v1/changes", params=params, headers=headers) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield ChangeStream(_events(reply.iter_lines()))


def _events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Event(fields["event"], json.loads(fields["data"]), fields["id"])
            fields = {}
        else:
            fields = {}
