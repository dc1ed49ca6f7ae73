"""Compare routing, invalidation and reconciliation with a million and a thousand partitions."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from bench.bench_stack import BenchStack, create_credentials, run_dispatcher
from bench.harness import Result, compare
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.lite.processes.ports import free_port
from trace_etl.state.db.connection import Connection
from trace_etl.state.db.pool import HOT_OPTIONS, Conn
from trace_etl.state.invalidations import invalidation_routing, invalidations
from trace_etl.state.invalidations.invalidations import NewInvalidation
from trace_etl.state.routing import events
from trace_etl.state.routing import reconcile as reconciling

MANY = 1_000_000
FEW = 1_000
CALLS = 40
FRESH = 500  # new partitions per pass
_NO_WAIT = "-c synchronous_commit=off"  # the statements are measured, not the disk

_DAG = """
name: bench
jobs:
  - {name: request, activation: source, source: {kind: manual}, outputs: [asked]}
  - {name: base, operator: sql, inputs: [{from: {job: request}}], outputs: [base],
     config: {sql: SELECT 1}}
  - {name: work, operator: sql, inputs: [{from: {job: base}}], outputs: [rows],
     config: {sql: SELECT 1}}
publish:
  - {name: base, from: {job: base}}
"""
# Building the index after the inserts is faster, and so is skipping the overlap check of each row.
_WITHOUT_INDEX = "ALTER TABLE partitions DROP CONSTRAINT partitions_do_not_overlap"
_WITH_INDEX = """
CREATE INDEX partitions_span ON partitions USING gist (
    box(point(generation_no, range_start), point(generation_no, range_end)))
"""
_PARTITIONS = """
INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start, range_end,
                        storage_ref, row_count, byte_count, columns, task_id, attempt)
SELECT v.dataset_version, v.generation_no, n * 10 || '-' || n * 10 + 9, n * 10, n * 10 + 9,
       '{}', 1, 1, '[]', gen_random_uuid(), 1
  FROM datasets d JOIN dataset_versions v USING (dataset_version),
       generate_series(%s::bigint, %s::bigint) n
 WHERE d.output_name = 'base'
"""
_TASKS = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, dataset_uuid, dataset_version,
                   partition_key, range_start, range_end, max_attempts, status, timeout_seconds,
                   lease_seconds, started_at, finished_at)
SELECT c.org_id, c.job_id, c.revision_id, c.runtime,
       concat_ws(':', c.dataset_uuid, c.dataset_version, c.generation_hash,
                 'p:' || p.partition_key),
       c.dataset_uuid, c.dataset_version, p.partition_key, p.range_start, p.range_end, 3,
       'Completed', 3600, 120, now(), now()
  FROM consumers c JOIN partitions p USING (dataset_version) WHERE p.range_start >= %s
"""
_EVENT = """
INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, partition_key, range_start,
                    range_end, producer_task_id, attempt)
SELECT d.org_id, d.dataset_uuid, d.dataset_version, concat('p:', n * 10, '-', n * 10 + 9),
       concat(n * 10, '-', n * 10 + 9), n * 10, n * 10 + 9, gen_random_uuid(), 1
  FROM datasets d, generate_series(%s::bigint, %s::bigint) n WHERE d.output_name = 'base'
RETURNING event_id
"""
_BASE = "SELECT org_id, dataset_uuid, dataset_version FROM datasets WHERE output_name = 'base'"


def insert_partitions(stack: BenchStack, count: int) -> None:
    """Fill the output `base` with partitions of ten blocks."""
    stack.execute(_WITHOUT_INDEX)
    stack.execute(_PARTITIONS, (0, count - 1))
    stack.execute(_WITH_INDEX)


class PartitionedState:
    """A database with many partitions, each with a finished task."""

    def __init__(self, stack: BenchStack, partitions: int) -> None:
        self.stack = stack
        self.next = partitions  # the first unused partition number
        self.partitions = partitions

    def seed(self) -> None:
        insert_partitions(self.stack, self.partitions)
        self.stack.execute(_TASKS, (0,))
        self.stack.execute("VACUUM ANALYZE")
        self._run(self._catch_up)
        self.stack.settle()

    def cells(self, count: int) -> tuple[int, int]:
        self.next += count
        return self.next - count, self.next - 1

    def route(self) -> float:
        """Return the median milliseconds to route one event."""
        ids = [row[0] for row in self.stack.execute(_EVENT, self.cells(CALLS))]
        return self._median([lambda conn, i=i: events.route(conn, [i]) for i in ids])

    def invalidate(self) -> float:
        """Return the median milliseconds to route the invalidation of one partition."""
        ((org_id, dataset, version),) = self.stack.execute(_BASE)
        starts = [(n * 37 % self.partitions) * 10 for n in range(CALLS)]
        return self._median(
            [lambda conn, s=s: _invalidate(conn, org_id, dataset, version, s) for s in starts]
        )

    def reconcile(self) -> float:
        """Return the milliseconds of a pass over new partitions that have tasks."""
        return self._pass(lost=False)

    def heal(self) -> float:
        """Return the milliseconds of a pass over new partitions whose events were lost."""
        return self._pass(lost=True)

    def _pass(self, *, lost: bool) -> float:
        cells = self.cells(FRESH)
        self.stack.execute(_PARTITIONS, cells)
        if not lost:
            self.stack.execute(_TASKS, (cells[0] * 10,))

        async def once(conn: Conn) -> None:
            done = await _pass(conn, FRESH)
            assert done == reconciling.Comparison(FRESH, FRESH if lost else 0), done

        return self._median([once])

    def idle(self) -> float:
        """Return the median milliseconds of a pass without new partitions."""
        return self._median([lambda conn: _pass(conn, FRESH)] * CALLS)

    async def _catch_up(self, conn: Conn) -> None:
        while (await _pass(conn, 50_000)).partitions:
            pass

    def _median(self, calls: list[Callable[[Conn], Awaitable[object]]]) -> float:
        waits: list[float] = []

        async def measure_calls(conn: Conn) -> None:
            for call in calls:
                began = time.perf_counter()
                await call(conn)
                waits.append(1000 * (time.perf_counter() - began))

        self._run(measure_calls)
        return statistics.median(waits)

    def _run(self, work: Callable[[Conn], Awaitable[None]]) -> None:
        async def connected() -> None:
            conn = await Connection.connect(
                self.stack.dsns.state, autocommit=True, options=f"{HOT_OPTIONS} {_NO_WAIT}"
            )
            async with conn:
                conn.prepare_threshold = 0
                await work(conn)

        asyncio.run(connected())


async def _pass(conn: Conn, limit: int) -> reconciling.Comparison:
    async with conn.transaction():
        horizon = await reconciling.read_horizon(conn)
        await reconciling.take_events(conn, grace=timedelta(0), limit=limit)
        return await reconciling.compare_partitions(conn, horizon=horizon, limit=limit)


async def _invalidate(conn: Conn, org_id: UUID, dataset: UUID, version: UUID, start: int) -> None:
    key = f"{start}-{start + 9}"
    new = NewInvalidation(dataset, version, "partition", key, start, start + 9, None, "bench")
    recorded = await invalidations.record(conn, org_id, [new], made_by="user:bench", fence=None)
    assert len(await invalidation_routing.route(conn, recorded)) == 1


@contextmanager
def start_databases() -> Generator[tuple[PartitionedState, PartitionedState]]:
    """Deploy the same DAG to two databases of one server, with many and with few partitions."""
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name, ExitStack() as exits:
        directory = create_credentials(Path(name))
        embedded = EmbeddedPostgres(directory / "postgres")
        exits.callback(embedded.remove)
        server = embedded.start()
        exits.callback(embedded.stop)
        states: list[PartitionedState] = []
        for label, count in (("many", MANY), ("few", FEW)):
            dsns = databases.provision(server, state=f"state_{label}", data=f"data_{label}")
            stack = BenchStack(directory, server, dsns, free_port(), free_port())
            with run_dispatcher(stack, stack.api_port, stack.internal_port):
                stack.post("/v1/dags", {"text": _DAG})
            states.append(PartitionedState(stack, count))
            states[-1].seed()
        yield states[0], states[1]


def run() -> list[Result]:
    """Divide each time with a million partitions by the time with a thousand."""
    with start_databases() as (many, few):
        pairs = {
            "routing_event_growth": (many.route, few.route, "<= 1.5"),
            "routing_invalidation_growth": (many.invalidate, few.invalidate, "<= 1.5"),
            "reconciler_pass_growth": (many.reconcile, few.reconcile, "<= 1.5"),
            "reconciler_idle_growth": (many.idle, few.idle, "<= 1.5"),
            # The comparison costs the same, but inserts go to random pages of a larger index.
            "reconciler_heal_growth": (many.heal, few.heal, "<= 3"),
        }
        return [
            compare(name, ours, theirs, unit="ms", goal=goal, rounds=9)
            for name, (ours, theirs, goal) in pairs.items()
        ]
