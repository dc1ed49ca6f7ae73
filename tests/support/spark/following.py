"""Followers in the test's process: the attempts of a stream, their reports and their rows."""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Signal
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from support.chain.growing_chain import GrowingChain
from support.services.postgres import sql
from support.waiting import eventually
from trace_etl.api.task.events import ChainHead, Event, Events
from trace_etl.api.task.payload import TaskPayload
from trace_etl.data import connection
from trace_etl.data.followers import Writer
from trace_etl.model.storage import hot_table
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.head_watch import Reason
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.follower import ChainFollower, FollowPlan, HotOutput
from trace_etl.spark.follow.streaming import StreamingFollower

KINDS = ("blocks", "transactions", "logs")
_ORDER = {
    "blocks": "block_number",
    "transactions": "block_number, transaction_index",
    "logs": "block_number, log_index",
}


# A reorganisation that ends at its starting height does not change `announced`: only the rewrites
# show that it was not reported yet.
_POSITION = """
SELECT number, hash, announced,
       (SELECT count(*) FROM follower_rewrites AS r WHERE r.stream = f.stream)
  FROM followers AS f WHERE stream = %s
"""


@dataclass
class FollowedChain:
    """A followed chain: its tables, and everything that its attempts reported to the Dispatcher."""

    dsn: str
    outputs: Sequence[HotOutput]
    task_id: UUID = field(default_factory=uuid4)
    events: list[Event] = field(default_factory=list[Event])
    invalidations: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    heads: list[ChainHead] = field(default_factory=list[ChainHead])
    set_aside: list[Reason] = field(default_factory=list[Reason])
    """Why endpoints were set aside."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    is_paused: bool = False

    @contextmanager
    def attempt(
        self, number: int, *urls: str, task_id: UUID | None = None, **source: Any
    ) -> Generator[ChainFollower]:
        """Open the stream as an attempt; the test calls its steps."""
        with self.unopened(number, *urls, task_id=task_id, **source) as follower:
            follower.open()
            yield follower

    @contextmanager
    def unopened(
        self, number: int, *urls: str, task_id: UUID | None = None, **source: Any
    ) -> Generator[ChainFollower]:
        writer = Writer(self.outputs[0].dataset_version, task_id or self.task_id, number)
        plan = FollowPlan(
            "test.follow", writer, self.outputs, **{"start": 0, "poll": 0.02, **self.options}
        )
        with (
            TipReader(_source(urls, source), KINDS, on_set_aside=self.set_aside.append) as reader,
            connection.connect(self.dsn) as conn,
        ):
            yield ChainFollower(
                plan,
                reader,
                conn,
                self.report,
                Signal(),
                lambda: self.is_paused,
                self.heads.append,
            )

    @contextmanager
    def streaming(
        self,
        number: int,
        spark: SparkSession,
        directory: Path,
        *urls: str,
        check_interval: float = 0.2,
        **source: Any,
    ) -> Generator["StreamingAttempt"]:
        """Run streaming queries as an attempt until the end of the block."""
        with self.unopened(number, *urls, **source) as follower, ThreadPoolExecutor(1) as pool:
            streaming = StreamingFollower(
                follower,
                spark,
                _source(urls, source),
                directory,
                check_interval=check_interval,
            )
            running = pool.submit(streaming.run)
            try:
                yield StreamingAttempt(self, streaming, running)
            finally:
                follower.stop.set()

    def report(
        self, events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        fence = {"task_id": self.task_id, "attempt": 1, "lease_token": uuid4()}
        Events.model_validate({**fence, "events": list(events), "invalidations": invalidations})
        self.events += events
        self.invalidations += invalidations

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of the hot tables, in the chain's order."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as conn:
            return {
                output.kind: conn.execute(
                    f"SELECT * FROM {output.table} ORDER BY {_ORDER[output.kind]}"
                ).fetchall()
                for output in self.outputs
            }

    def reported_ranges(self) -> list[tuple[int, int]]:
        """Return the rewritten ranges that were reported for the dataset of blocks."""
        blocks = str(self.outputs[0].dataset_uuid)
        mine = [item for item in self.invalidations if item["dataset_uuid"] == blocks]
        return [(item["start"], item["end"]) for item in mine]

    def position(self) -> list[Any]:
        """Return the last block's number and hash, the last reported number, and the unreported rewrites."""
        return sql(self.dsn, _POSITION, [self.outputs[0].dataset_version])

    def is_at(self, number: int, block_hash: bytes) -> bool:
        """Return whether the tables end with this block and, unless paused, everything was reported."""
        position = self.position()
        return [row[:2] for row in position] == [(number, block_hash)] and (
            self.is_paused or position[0][2:] == (number, 0)
        )


@dataclass
class StreamingAttempt:
    """A running streaming attempt."""

    stream: FollowedChain
    follower: StreamingFollower
    running: Future[None]

    def catch_up(self, chain: GrowingChain, start: int = 0) -> None:
        """Wait until the tables hold the whole chain and everything was reported."""
        rows = chain.rows(start)
        eventually(lambda: self._is_at(rows["blocks"]), "the tables hold the chain")
        assert self.stream.rows() == rows

    def failure(self) -> BaseException | None:
        return self.running.exception(timeout=300)

    def _is_at(self, blocks: Sequence[Mapping[str, Any]]) -> bool:
        if self.running.done():
            self.running.result()
            raise AssertionError("the follower ended")
        return self.stream.is_at(blocks[-1]["block_number"], blocks[-1]["block_hash"])


def _source(urls: tuple[str, ...], options: Mapping[str, Any]) -> RpcSource:
    return RpcSource(urls, **{"tries": 3, "initial_delay": 0.01, **options})


def new_stream(dsn: str, **options: Any) -> FollowedChain:
    outputs: list[HotOutput] = []
    for kind in KINDS:
        dataset, version = uuid4(), uuid4()
        outputs.append(HotOutput(kind, hot_table(dataset, version), dataset, version))
    return FollowedChain(dsn, outputs, options=options)


def hot_outputs(payload: TaskPayload) -> list[HotOutput]:
    """Return the outputs of a follower's task."""
    return [
        HotOutput(
            output.name.removeprefix("hot_"),
            hot_table(output.dataset_uuid, output.dataset_version),
            output.dataset_uuid,
            output.dataset_version,
        )
        for output in payload.outputs
    ]


def catch_up(follower: ChainFollower) -> None:
    """Step until there are no new blocks."""
    while follower.step():
        pass
