"""Two Dispatchers on one Postgres that a test can restart, with recorded clients."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import psycopg

from support import queue_tables
from support.lifecycle.lifecycle_view import CLEAN, View
from support.lifecycle.recorder import Recorder
from support.services.dispatcher import Live, Secrets, live
from trace_etl.lite.postgres.databases import Dsns


@dataclass
class Replica:
    """A Dispatcher whose loops do not run, and clients that keep their connections."""

    name: str
    start: Callable[[], Any]
    recorder: Recorder
    _exit: ExitStack = field(default_factory=ExitStack)

    def up(self) -> "Replica":
        self.live: Live = self._exit.enter_context(self.start())
        self.internal = self._client(self.live.internal())
        self.user = self._client(self.live.user())
        return self

    def _client(self, client: httpx.Client) -> httpx.Client:
        return self.recorder.watch(self._exit.enter_context(client), self.name)

    def down(self) -> None:
        self._exit.close()


@dataclass
class ReplicaPair:
    """Two replicas, and connections to their databases."""

    dsns: Dsns
    recorder: Recorder
    replicas: list[Replica]
    state: psycopg.Connection[Any]
    queue: psycopg.Connection[Any]
    threads: ThreadPoolExecutor

    def restart(self, n: int) -> None:
        self.replicas[n].down()
        self.replicas[n].up()

    def view(self) -> View:
        return View(self.state, self.queue)

    def clean(self) -> None:
        """Delete every task but keep the DAG, so that the next run starts empty."""
        for statement in CLEAN:
            self.state.execute(statement)
        queue_tables.delete_all(self.dsns.queue)
        self.recorder.clear()

    def run_concurrently(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """Run the calls concurrently, started together by a barrier."""
        barrier = Barrier(len(calls))

        def run(call: Callable[[], Any]) -> Any:
            barrier.wait(120)
            return call()

        return [f.result(300) for f in [self.threads.submit(run, call) for call in calls]]


@contextmanager
def replica_pair(secrets: Secrets, dsns: Dsns, objects: Path, dag: str) -> Generator[ReplicaPair]:
    """Run two replicas with the DAG deployed. Retries wait an hour unless a test changes their time."""
    recorder, hour = Recorder(), timedelta(hours=1)

    def start() -> Any:
        return live(secrets, dsns, objects, retry_initial=hour, retry_max=hour)

    with ExitStack() as stack:
        replicas = [Replica(f"r{n}", start, recorder).up() for n in (0, 1)]
        for replica in replicas:
            stack.callback(replica.down)
        state = stack.enter_context(psycopg.connect(dsns.state, autocommit=True))
        queue = stack.enter_context(psycopg.connect(dsns.queue, autocommit=True))
        threads = stack.enter_context(ThreadPoolExecutor(4))
        reply = replicas[0].user.post("/v1/dags", json={"text": dag})
        assert reply.status_code == 200, reply.text
        yield ReplicaPair(dsns, recorder, replicas, state, queue, threads)
