"""Followers in the test's own process: a stream's attempts, what they told, what they wrote."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event as Signal
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from trace_etl.data import connection
from trace_etl.data.followers import Writer
from trace_etl.model.storage import hot_table
from trace_etl.pipeline.evm.fetch import Source
from trace_etl.pipeline.evm.tip import TipReader
from trace_etl.pipeline.follower import Follower, HotOutput, Plan
from trace_etl.wire.news import Event, Events

KINDS = ("blocks", "transactions", "logs")
_ORDER = {
    "blocks": "block_number",
    "transactions": "block_number, transaction_index",
    "logs": "block_number, log_index",
}


@dataclass
class Stream:
    """A followed chain: its tables, and everything its attempts told the Dispatcher."""

    dsn: str
    outputs: Sequence[HotOutput]
    task_id: UUID = field(default_factory=uuid4)
    events: list[Event] = field(default_factory=list[Event])
    invalidations: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    how: dict[str, Any] = field(default_factory=dict[str, Any])
    is_held: bool = False

    @contextmanager
    def attempt(
        self, number: int, *urls: str, task_id: UUID | None = None, **source: Any
    ) -> Generator[Follower]:
        """An attempt that has opened the stream; the test makes its steps."""
        with self.unopened(number, *urls, task_id=task_id, **source) as follower:
            follower.open()
            yield follower

    @contextmanager
    def unopened(
        self, number: int, *urls: str, task_id: UUID | None = None, **source: Any
    ) -> Generator[Follower]:
        writer = Writer(self.outputs[0].dataset_version, task_id or self.task_id, number)
        plan = Plan("test.follow", writer, self.outputs, **{"start": 0, "poll": 0.02, **self.how})
        endpoints = Source(urls, **{"tries": 3, "first_wait": 0.01, **source})
        with TipReader(endpoints, KINDS) as reader, connection.connect(self.dsn) as conn:
            yield Follower(plan, reader, conn, self.tell, Signal(), lambda: self.is_held)

    def tell(
        self, events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        fence = {"task_id": self.task_id, "attempt": 1, "lease_token": uuid4()}
        Events.model_validate({**fence, "events": list(events), "invalidations": invalidations})
        self.events += events
        self.invalidations += invalidations

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Everything in the hot tables, in the chain's order."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as conn:
            return {
                output.kind: conn.execute(
                    f"SELECT * FROM {output.table} ORDER BY {_ORDER[output.kind]}"
                ).fetchall()
                for output in self.outputs
            }

    def told_ranges(self) -> list[tuple[int, int]]:
        """The rewritten ranges as told for the blocks."""
        blocks = str(self.outputs[0].dataset_uuid)
        mine = [one for one in self.invalidations if one["dataset_uuid"] == blocks]
        return [(one["start"], one["end"]) for one in mine]


def new_stream(dsn: str, **how: Any) -> Stream:
    outputs: list[HotOutput] = []
    for kind in KINDS:
        dataset, version = uuid4(), uuid4()
        outputs.append(HotOutput(kind, hot_table(dataset, version), dataset, version))
    return Stream(dsn, outputs, how=how)


def catch_up(follower: Follower) -> None:
    """Steps until there is nothing new."""
    while follower.step():
        pass
