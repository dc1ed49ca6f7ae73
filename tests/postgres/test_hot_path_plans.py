"""No hot statement scans a whole table, whatever the size of the history.

The planner may scan a small table when it expects many keys, so each statement runs in a young, a
grown and an old database.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import AsyncCursor
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer
from psycopg.sql import SQL, Literal

from support import queue_tables
from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.model.task import Fence
from trace_etl.queues import pgqueue
from trace_etl.state.catalog import datasets
from trace_etl.state.db.connection import Connection
from trace_etl.state.db.pool import HOT_OPTIONS, Conn
from trace_etl.state.flow import backfill_steps, pressure, resume
from trace_etl.state.invalidations import invalidation_routing, invalidations
from trace_etl.state.invalidations.invalidations import NewInvalidation
from trace_etl.state.partitions import buffers, partition_commit
from trace_etl.state.partitions.new_partition import NewPartition
from trace_etl.state.rollout import backfill_consumers, deployed_state
from trace_etl.state.routing import cursors, events, outbox
from trace_etl.state.routing import reconcile as reconciling
from trace_etl.state.storage import retired_generations
from trace_etl.state.tasks import (
    cancellations,
    capped_claims,
    claims,
    completions,
    leases,
    ready_claims,
    task_queries,
)
from trace_etl.state.tasks.claims import ClaimRequest
from trace_etl.state.tasks.completions import Completion, NewEvent

HISTORY = {"young": 1_000, "grown": 4_000, "old": 20_000}
LARGE = {
    "tasks",
    "task_attempts",
    "events",
    "partitions",
    "outbox",
    "buffer_publishes",
    "messages",
    "partition_inputs",
    "invalidations",
    "invalidation_consumers",
}
# Rows that a statement may read and discard. The history has thousands.
WASTED_ROWS = 60
# Rows that a statement may use. Even the young database has more rows in its large tables.
MAX_ROWS = 300
# Pairs that a join may compare and discard: a few rows of the statement with a small table.
WASTED_PAIRS = 2_000

_HISTORY = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, dataset_uuid, dataset_version,
                   partition_key, range_start, range_end, status, max_attempts, timeout_seconds,
                   lease_seconds, lease_token, lease_expires_at, worker_id, created_at, queued_at,
                   started_at, finished_at)
SELECT t.org_id, t.job_id, t.revision_id, t.runtime, 'history:' || n, t.dataset_uuid,
       t.dataset_version, t.partition_key, t.range_start, t.range_end, 'Completed', 3, 3600, 120,
       gen_random_uuid(), now() - interval '1 hour', 'w', now() - make_interval(secs => n),
       now() - make_interval(secs => n), now() - make_interval(secs => n),
       now() - make_interval(secs => n)
  FROM (SELECT * FROM tasks WHERE status = 'Queued' LIMIT 1) t, generate_series(1, {history}) n;
INSERT INTO task_attempts (task_id, attempt, outcome)
SELECT task_id, 1, 'Completed' FROM tasks WHERE status = 'Completed'
ON CONFLICT DO NOTHING;
INSERT INTO events (org_id, dataset_uuid, dataset_version, scope_key, cursor_value,
                    producer_task_id, attempt, routed_at, accepted_at)
SELECT org_id, dataset_uuid, dataset_version, 'c:1', 1, task_id, 1, now(), finished_at
  FROM tasks WHERE dedupe_key LIKE 'history:%';
INSERT INTO outbox (kind, subject, tries, failed_at)
SELECT 'route_event', gen_random_uuid(), 20, now() FROM generate_series(1, {history}) n;
INSERT INTO buffer_publishes (org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
                              content_type)
SELECT org_id, task_id, 1, dataset_uuid, dataset_version, 's3://b/' || n, 'application/jsonl'
  FROM (SELECT * FROM tasks WHERE status = 'Completed' LIMIT 1) t, generate_series(1, {history}) n;
INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start, range_end,
                        storage_ref, row_count, byte_count, columns, task_id, attempt)
SELECT v.dataset_version, v.generation_no, n * 10 || '-' || n * 10 + 9, n * 10, n * 10 + 9,
       '{{}}', 1, 1, '[]', gen_random_uuid(), 1
  FROM dataset_versions v, generate_series(1, {history} / 4) n;
INSERT INTO partition_inputs (dataset_version, partition_key, input_version, input_key, task_id,
                              attempt)
SELECT o.dataset_version, p.partition_key, i.dataset_version, p.partition_key, p.task_id, 1
  FROM job_inputs i JOIN job_outputs o USING (revision_id)
  JOIN partitions p ON p.dataset_version = o.dataset_version
 WHERE i.dataset_version IS NOT NULL;
WITH made AS (
    INSERT INTO invalidations (org_id, dataset_uuid, dataset_version, kind, partition_key,
                               range_start, range_end, made_by, routed_at)
    SELECT d.org_id, d.dataset_uuid, d.dataset_version, 'partition', p.partition_key,
           p.range_start, p.range_end, 'user:x', now()
      FROM datasets d JOIN partitions p USING (dataset_version)
    RETURNING invalidation_id)
INSERT INTO invalidation_consumers (invalidation_id, job_id, task_id, processed_at)
SELECT m.invalidation_id, t.job_id, t.task_id, now()
  FROM made m CROSS JOIN (SELECT * FROM tasks WHERE status = 'Completed' LIMIT 1) t;
"""


@pytest.fixture(scope="module", params=HISTORY)
def stage(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def busy(
    stage: str, templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A database with history, and a Dispatcher whose loops run only when a test calls them."""
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running, bench(running) as one:
        one.tasks(1)
        add_history(one, HISTORY[stage])
        yield one


def add_history(one: Bench, history: int) -> None:
    with psycopg.connect(one.live.dsns.state, autocommit=True) as conn:
        conn.execute(_HISTORY.format(history=history).encode())
        conn.execute("VACUUM ANALYZE")
    queue_tables.add_hidden(one.live.dsns.queue, "ecs_rust", history)


# --- recording statements and their plans ----------------------------------------------------------


@dataclass(frozen=True)
class RecordedStatement:
    query: Any
    values: Any


def recording_class(ran: list[RecordedStatement]) -> type[Connection]:
    class RecordingCursor(AsyncCursor[Any]):
        async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            ran.append(RecordedStatement(query, params))
            return await super().execute(query, params, **options)

    class Recording(Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.cursor_factory = RecordingCursor

        async def rows(self, query: Any, values: Any, make: Any) -> list[Any]:
            ran.append(RecordedStatement(query, values))
            return await super().rows(query, values, make)

    return Recording


@asynccontextmanager
async def recording_connection(
    dsn: str, options: str, ran: list[RecordedStatement]
) -> AsyncGenerator[Conn]:
    """Open a connection with the pool's options that records its statements and rolls them back."""
    conn = await recording_class(ran).connect(dsn, autocommit=True, options=options)
    async with conn, conn.transaction(force_rollback=True):
        yield conn


async def plans(
    dsn: str, options: str, ran: list[RecordedStatement]
) -> list[tuple[str, dict[str, Any]]]:
    """Execute each statement again with EXPLAIN ANALYZE, roll it back, and return the plans."""
    async with await Connection.connect(dsn, autocommit=True, options=options) as conn:
        return await explain(conn, ran)


async def explain(conn: Conn, ran: list[RecordedStatement]) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for one in ran:
        query, types, values = converted(conn, one)
        if not query.lstrip().upper().startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DEL")):
            continue
        names = [await type_name(conn, oid) for oid in types]
        typed = f"({', '.join(names)})" if names else ""
        name = f"p{uuid4().hex}"
        await conn.execute(f"PREPARE {name} {typed} AS {query}".encode())
        given = SQL(", ").join(
            SQL("{}::{}").format(Literal(v), SQL(t)) for v, t in zip(values, names, strict=True)
        )
        call = SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {}").format(SQL(name))
        if values:
            call = SQL("{}({})").format(call, given)
        async with conn.transaction(force_rollback=True):
            (row,) = await (await conn.execute(call)).fetchall()
        plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
        found.append((query, plan[0]["Plan"]))
    return found


def converted(conn: Any, one: RecordedStatement) -> tuple[str, list[int], list[Any]]:
    """Return a statement as psycopg sends it: `$1` instead of names, and the types of its values."""
    prepared = PostgresQuery(Transformer(conn))
    prepared.convert(one.query, one.values)
    order = prepared._order
    values = one.values or ()
    picked = [values[name] for name in order] if order is not None else list(values)
    return prepared.query.decode(), list(prepared.types), picked


async def type_name(conn: Any, oid: int) -> str:
    (row,) = await (await conn.execute("SELECT %s::oid::regtype::text", (oid or 25,))).fetchall()
    return row[0]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def find_faults(query: str, plan: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for node in nodes(plan):
        table = node.get("Relation Name", "")
        if not node["Actual Loops"]:
            continue  # a branch that was not executed
        if node["Node Type"] == "Seq Scan" and table in LARGE:
            found.append(f"Seq Scan on {table} in {query}")
        discarded = node.get("Rows Removed by Filter", 0) * node.get("Actual Loops", 1)
        discarded_pairs = node.get("Rows Removed by Join Filter", 0) * node.get("Actual Loops", 1)
        if discarded_pairs > WASTED_PAIRS:
            found.append(f"{node['Node Type']} discards {discarded_pairs} pairs in {query}")
        if table in LARGE and discarded > WASTED_ROWS:
            found.append(f"{node['Node Type']} on {table} discards {discarded} rows in {query}")
        if table in LARGE and node["Actual Rows"] > MAX_ROWS:
            found.append(f"{node['Node Type']} on {table} reads {node['Actual Rows']} in {query}")
    return found


# --- the statements ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """The tasks and the attempt that the statements work on."""

    queued: list[UUID]
    attempt: Attempt
    job_id: UUID
    org_id: UUID

    @property
    def fence(self) -> Fence:
        mine = self.attempt.fence
        return Fence(UUID(mine["task_id"]), mine["attempt"], UUID(mine["lease_token"]))

    def event(self) -> NewEvent:
        output = self.attempt.output
        version = UUID(output["dataset_version"])
        return NewEvent(UUID(output["dataset_uuid"]), version, "p:0-9", "0-9", 0, 9, None)


Statement = Callable[[Conn, Scene], Awaitable[object]]


def requests(scene: Scene) -> list[ClaimRequest]:
    return [ClaimRequest(task_id, "w", uuid4()) for task_id in scene.queued]


def stale(fence: Fence) -> Fence:
    return Fence(fence.task_id, fence.attempt, uuid4())


async def reap(conn: Conn, scene: Scene) -> None:
    await conn.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    for expired in await leases.lock_expired(conn, limit=500):
        wait = timedelta(seconds=1)
        await leases.reap(conn, expired, cause="lease_expired", message="x", retry_after=wait)
    await leases.start_next_attempts(conn, limit=500)


async def batch(conn: Conn, scene: Scene) -> None:
    output = scene.attempt.output
    version = UUID(output["dataset_version"])
    new = buffers.NewBatch(
        scene.org_id, UUID(output["dataset_uuid"]), version, "s3://x/y", "t", 1, 1
    )
    await buffers.publish_batch(conn, scene.fence, new)
    await buffers.publish_batch(conn, scene.fence, new)


async def take_and_route(conn: Conn, scene: Scene) -> None:
    await completions.record_events(conn, scene.fence, [scene.event()])
    taken = await outbox.lease(conn, limit=500, hold=timedelta(seconds=30))
    route_requests = [i for i in taken if i.kind == "route_event"]
    wait = timedelta(seconds=1)
    performed = [i.outbox_id for i in route_requests]
    await events.route(conn, [i.subject for i in route_requests], performed=performed, hold=wait)
    ids = [i.outbox_id for i in taken]
    await outbox.record_failure(conn, ids, error="x", retry_after=wait, max_tries=20)
    await outbox.delete_performed(conn, ids)


async def point(conn: Conn, scene: Scene) -> None:
    output = scene.attempt.output
    dataset, version = UUID(output["dataset_uuid"]), UUID(output["dataset_version"])
    new = [
        NewPartition(dataset, version, f"{n}-{n + 9}", n, n + 9, {}, 1, 1, 2, []) for n in (0, 50)
    ]
    await conn.execute("UPDATE tasks SET range_end = 99 WHERE task_id = %s", (scene.fence.task_id,))
    await partition_commit.commit(conn, scene.fence, new)


async def invalidate(conn: Conn, scene: Scene) -> None:
    output = scene.attempt.output
    dataset, version = UUID(output["dataset_uuid"]), UUID(output["dataset_version"])
    blocks = NewInvalidation(dataset, version, "row_range", None, 503, 534, None, "")
    key = NewInvalidation(dataset, version, "partition", "700-709", 700, 709, None, "")
    made = await invalidations.record(
        conn, scene.org_id, [blocks, key], made_by="task:x", fence=scene.fence
    )
    await invalidation_routing.route(conn, made)
    await invalidations.get_scopes(conn, made)


async def reconcile(conn: Conn, scene: Scene) -> None:
    horizon = await reconciling.read_horizon(conn)
    for _ in range(2):
        await reconciling.compare_partitions(conn, horizon=horizon, limit=100)
    wait = timedelta(days=-1)
    await conn.execute("UPDATE reconciled_events SET accepted_at = now() - interval '1 day'")
    await reconciling.take_events(conn, grace=wait, limit=100)
    await reconciling.list_unrouted_invalidations(conn, grace=wait, limit=100)


HOT: dict[str, Statement] = {
    "claim": lambda c, s: claims.claim(c, requests(s)),
    "claim_capped": lambda c, s: capped_claims.claim_capped(c, requests(s)),
    "claim_ready": lambda c, s: ready_claims.claim_ready(c, "ecs_python", [("w", uuid4())] * 20),
    "find_ready": lambda c, s: capped_claims.find_ready(c, "ecs_python", 20),
    "claim_states": lambda c, s: claims.claim_states(c, s.queued),
    "find_claimed": lambda c, s: claims.find_claimed(c, requests(s)[0]),
    "find_running": lambda c, s: claims.find_running(c, [uuid4() for _ in range(20)]),
    "get_claimed": lambda c, s: claims.get_claimed(c, s.queued[0]),
    "extend": lambda c, s: leases.extend(
        c, [leases.Extension(f, "lambda") for f in (s.fence, stale(s.fence))]
    ),
    "complete": lambda c, s: completions.complete(
        c, [Completion(s.fence, "Completed", b"x", events=[s.event()])]
    ),
    "complete_plain": lambda c, s: completions.complete_plain(
        c, [Completion(s.fence, "Completed", b"x")]
    ),
    "record_events": lambda c, s: completions.record_events(c, s.fence, [s.event()] * 3),
    "fence_states": lambda c, s: completions.fence_states(c, s.queued),
    "buffer_publish": batch,
    "redeliver_overdue": lambda c, s: buffers.redeliver_overdue(c, limit=500),
    "reap and retry": reap,
    "next_retry": lambda c, s: leases.next_retry(c),
    "next_expiry": lambda c, s: leases.next_expiry(c),
    "outbox and route": take_and_route,
    "next_due": lambda c, s: outbox.next_due(c),
    "wake_next": lambda c, s: task_queries.wake_next(c, s.job_id),
    "wake_overdue": lambda c, s: task_queries.wake_overdue(
        c, "ecs_python", older_seconds=0, limit=500
    ),
    "list_queued_runtimes": lambda c, s: task_queries.list_queued_runtimes(c),
    "cancel_task": lambda c, s: cancellations.cancel_task(c, s.org_id, s.queued[0]),
    "point": point,
    "invalidate": invalidate,
    "reconcile": reconcile,
    "find_start": lambda c, s: cursors.find_start(c, s.queued[0]),
    "find_uuid": lambda c, s: datasets.find_uuid(c, s.org_id, "unknown"),
    "pressure state": lambda c, s: pressure.read_state(c),
    "pressure measure": lambda c, s: pressure.measure_queues(c),
    "pressure edges": lambda c, s: pressure.list_edges(c),
    "resume_job": lambda c, s: resume.resume_job(c, s.job_id, after=None, limit=500),
    "list_missed_jobs": lambda c, s: resume.list_missed_jobs(c, limit=500),
    "backfill step": lambda c, s: backfill_steps.lock_next(c, UUID(int=0)),
}


@pytest.fixture(scope="module")
def scene(busy: Bench) -> Scene:
    made = busy.tasks(30, "max_queue_depth: 1000")
    attempt = busy.claimed(made[0])
    row = busy.row(made[0])
    busy.rows("UPDATE tasks SET max_concurrency = 100 WHERE task_id = ANY(%s::uuid[])", made[-5:])
    return Scene([UUID(t) for t in made[1:]], attempt, row["job_id"], row["org_id"])


@pytest.mark.parametrize("options", [HOT_OPTIONS, ""], ids=["hot", "plain"])
async def test_no_hot_statement_reads_history(busy: Bench, scene: Scene, options: str) -> None:
    ran: list[RecordedStatement] = []
    connect, dsn = recording_class(ran).connect, busy.live.dsns.state
    faults: dict[str, list[str]] = {}
    async with (
        await connect(dsn, autocommit=True, options=options) as recording,
        await Connection.connect(dsn, autocommit=True, options=options) as explaining,
    ):
        for name, call in HOT.items():
            ran.clear()
            async with recording.transaction(force_rollback=True):
                await call(recording, scene)
            seen = await explain(explaining, ran)
            assert seen, name
            faults[name] = [fault for query, plan in seen for fault in find_faults(query, plan)]
    assert {name: found for name, found in faults.items() if found} == {}


_ALL_RUN = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, dedupe_key, max_attempts, timeout_seconds,
                   lease_seconds, status, worker_id, lease_token, started_at, lease_expires_at,
                   deadline_at)
SELECT org_id, job_id, revision_id, runtime, 'runs:' || n, 3, 3600, 120, 'Running', 'w',
       gen_random_uuid(), now(), now() + interval '1 hour', now() + interval '1 hour'
  FROM tasks, generate_series(1, 3000) n WHERE task_id = %s
"""


@pytest.mark.parametrize(
    "name", ["claim", "extend", "complete", "complete_plain", "record_events", "fence_states"]
)
async def test_no_hot_statement_reads_the_running_tasks_of_others(
    busy: Bench, scene: Scene, name: str
) -> None:
    busy.rows(_ALL_RUN, scene.queued[0])
    busy.rows("ANALYZE tasks")
    ran: list[RecordedStatement] = []
    try:
        async with recording_connection(busy.live.dsns.state, HOT_OPTIONS, ran) as conn:
            await HOT[name](conn, scene)
        seen = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
        assert [fault for query, plan in seen for fault in find_faults(query, plan)] == []
    finally:
        busy.rows("DELETE FROM tasks WHERE dedupe_key LIKE 'runs:%%'")


async def test_a_deploy_does_not_scan_all_partitions_for_each_job(busy: Bench) -> None:
    """With partitions of one generation, the planner expects that every generation has as many."""
    ran: list[RecordedStatement] = []
    async with recording_connection(busy.live.dsns.state, "", ran) as conn:
        await conn.execute(
            "DELETE FROM partitions WHERE dataset_version <> (SELECT max(dataset_version::text)::uuid"
            " FROM partitions)"
        )
        await conn.execute("ANALYZE partitions")
        revisions = await (await conn.execute("SELECT revision_id FROM job_revisions")).fetchall()
        chosen = [revision for (revision,) in revisions]
        await backfill_consumers.backfill(conn, chosen)
        # Sorting is as expensive as with a million partitions.
        await conn.execute("SET LOCAL work_mem = '64kB'; SET LOCAL random_page_cost = 0.1")
        jobs = await (await conn.execute("SELECT dag_id, name FROM jobs")).fetchall()
        backfill = {"revision_ids": chosen, "dataset_uuids": [], "only_recent": False}
        names = [name for _, name in jobs]
        contents = {"dag_id": jobs[0][0], "dag_version": None, "names": names}
        statements = {backfill_consumers._BACKFILL: backfill, deployed_state._CONTENTS: contents}
        for query, values in statements.items():
            explained = await conn.execute(f"EXPLAIN (FORMAT JSON) {query}", values)
            ((plan,),) = await explained.fetchall()
            reads = [n for n in nodes(plan[0]["Plan"]) if n.get("Relation Name") == "partitions"]
            assert reads
            # Both of these read every generation.
            assert [n for n in reads if n["Node Type"] == "Seq Scan"] == [], query
            assert [n for n in reads if n.get("Index Name") == "partitions_task"] == [], query


async def test_retention_reads_only_superseded_generations(busy: Bench, scene: Scene) -> None:
    ran: list[RecordedStatement] = []
    async with recording_connection(busy.live.dsns.state, HOT_OPTIONS, ran) as conn:
        swept = await retired_generations.sweep(
            conn, retention=timedelta(0), org_id=None, limit=500
        )
        assert swept == 0
    seen = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
    assert [fault for query, plan in seen for fault in find_faults(query, plan)] == []


async def test_receiving_from_the_queue_does_not_read_hidden_messages(
    busy: Bench, stage: str
) -> None:
    if stage != "old":
        pytest.skip("a small queue is read as fast by a sequential scan")
    values = {"queues": ["ecs_python"], "limit": 10, "visibility": timedelta(seconds=1)}
    for queues in (["ecs_python"], ["ecs_python", "ecs_rust"]):
        ran = [RecordedStatement(pgqueue._RECEIVE, {**values, "queues": queues})]
        ((query, plan),) = await plans(busy.live.dsns.queue, "", ran)
        assert find_faults(query, plan) == []


async def test_sending_reads_no_waiting_messages_of_other_jobs(busy: Bench, stage: str) -> None:
    if stage != "old":
        pytest.skip("a small queue is read as fast by a sequential scan")
    async with await Connection.connect(busy.live.dsns.queue, autocommit=True) as conn:
        groups = await (
            await conn.execute(
                "SELECT group_key FROM queue.messages GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
            )
        ).fetchall()
    sent = [groups[0][0], "new", None]
    values = {
        "queues": ["ecs_python"] * 3,
        "bodies": ["{}"] * 3,
        "groups": sent,
        "positions": [5, 6, None],
        "bulk": False,
        "channels": ["queue_ecs_python"],
    }
    ran = [RecordedStatement(pgqueue._SEND, values)]
    ((query, plan),) = await plans(busy.live.dsns.queue, "", ran)
    assert find_faults(query, plan) == []


async def test_the_check_of_plans_detects_a_sequential_scan(busy: Bench) -> None:
    ran = [RecordedStatement("SELECT 1 FROM tasks WHERE worker_id = %s", ("unknown",))]
    ((query, plan),) = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
    assert find_faults(query, plan)


_PAUSED_QUEUE = """
INSERT INTO tasks (org_id, job_id, revision_id, runtime, bulk, dedupe_key, dataset_uuid,
                   dataset_version, partition_key, range_start, range_end, max_attempts,
                   timeout_seconds, lease_seconds, queued_at)
SELECT org_id, job_id, revision_id, runtime, true, 'paused:' || n, dataset_uuid, dataset_version,
       partition_key, n, n, 3, 3600, 120, now() - interval '1 day'
  FROM tasks, generate_series(1, 3000) n WHERE task_id = %s
"""


@pytest.mark.parametrize("column", ["paused", "bulk_paused"])
async def test_a_claim_by_runtime_reads_no_queued_tasks_of_paused_jobs(
    busy: Bench, scene: Scene, column: str
) -> None:
    (task_id,) = busy.tasks(1)
    busy.rows(_PAUSED_QUEUE, task_id)
    job = busy.row(task_id)["job_id"]
    pause = f"UPDATE jobs SET {column}_at = %s, {column}_by = %s WHERE job_id = %s"
    busy.rows(pause, "2026-01-01", "user:x", job)
    busy.rows("ANALYZE tasks")
    ran: list[RecordedStatement] = []
    try:
        async with recording_connection(busy.live.dsns.state, HOT_OPTIONS, ran) as conn:
            await HOT["claim_ready"](conn, scene)
            await HOT["find_ready"](conn, scene)
        seen = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
        assert [fault for query, plan in seen for fault in find_faults(query, plan)] == []
    finally:
        busy.rows(pause, None, None, job)
        busy.rows("DELETE FROM tasks WHERE job_id = %s", job)


_CAP_OPERATOR = """
WITH capped AS (
    INSERT INTO operator_caps (operator, cap)
    SELECT r.operator, 3 FROM jobs j JOIN job_revisions r USING (revision_id) WHERE j.job_id = %s
    RETURNING operator
)
UPDATE jobs SET capped_operator = operator FROM capped WHERE job_id = %s
"""


async def test_a_claim_by_runtime_reads_no_queued_tasks_of_other_runtimes(
    busy: Bench, scene: Scene
) -> None:
    """Other runtimes have long queues that were filled after the last ANALYZE."""
    made = [busy.tasks(1)[0] for _ in range(20)]
    jobs = [busy.row(task_id)["job_id"] for task_id in made]
    busy.rows("VACUUM ANALYZE tasks")
    for task_id, mark in zip(made, ("plain", "own cap", "other cap"), strict=False):
        queue = _PAUSED_QUEUE.replace("runtime, true", "'ecs_rust', false")
        busy.rows(queue.replace("'paused:'", f"'{mark}:'"), task_id)
    busy.rows("UPDATE tasks SET max_concurrency = 5 WHERE dedupe_key LIKE 'own cap:%%'")
    busy.rows(_CAP_OPERATOR, jobs[2], jobs[2])
    # While any job is paused, the claim scans every job separately.
    busy.rows("UPDATE jobs SET paused_at = now(), paused_by = 'me' WHERE job_id = %s", jobs[3])
    try:
        # The second runtime has an empty queue.
        for runtime, has_tasks in (("ecs_python", True), ("ecs_platform", False)):
            ran: list[RecordedStatement] = []
            async with recording_connection(busy.live.dsns.state, HOT_OPTIONS, ran) as conn:
                await ready_claims.claim_ready(conn, runtime, [("w", uuid4())] * 40)
                await capped_claims.find_ready(conn, runtime, 40)
            assert len(ran) == 2
            seen = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
            assert [fault for query, plan in seen for fault in find_faults(query, plan)] == []
            every = [n for _, plan in seen for n in nodes(plan)]
            loops = [n["Actual Loops"] for n in every if n.get("Index Name") == "tasks_uncapped"]
            assert any(loops) == has_tasks
    finally:
        busy.rows("DELETE FROM operator_caps")
        busy.rows("UPDATE jobs SET paused_at = NULL, paused_by = NULL WHERE job_id = %s", jobs[3])
        for job_id in jobs:
            busy.rows("UPDATE jobs SET capped_operator = NULL WHERE job_id = %s", job_id)
            busy.rows("DELETE FROM tasks WHERE job_id = %s", job_id)


async def test_a_claim_by_id_reads_no_queue_filled_after_the_last_analyze(
    busy: Bench, scene: Scene
) -> None:
    (task_id,) = busy.tasks(1)
    job = busy.row(task_id)["job_id"]
    busy.rows("VACUUM ANALYZE tasks")
    busy.rows(_PAUSED_QUEUE.replace("runtime, true", "runtime, false"), task_id)
    ran: list[RecordedStatement] = []
    try:
        async with recording_connection(busy.live.dsns.state, HOT_OPTIONS, ran) as conn:
            await claims.claim(conn, [ClaimRequest(UUID(task_id), "w", uuid4())])
        seen = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
        assert [fault for query, plan in seen for fault in find_faults(query, plan)] == []
        read = [n["Index Name"] for _, plan in seen for n in nodes(plan) if "Index Name" in n]
        assert [name for name in read if name.startswith("tasks_")] == ["tasks_pkey"]
    finally:
        busy.rows("DELETE FROM tasks WHERE job_id = %s", job)


@pytest.mark.parametrize("is_paused", [False, True], ids=["", "paused"])
async def test_a_claim_by_runtime_reads_no_queue_of_a_job_at_its_cap(
    busy: Bench, scene: Scene, *, is_paused: bool
) -> None:
    full, *others = [busy.tasks(1)[0] for _ in range(5)]
    jobs = [busy.row(task_id)["job_id"] for task_id in (full, *others)]
    busy.rows(_PAUSED_QUEUE.replace("runtime, true", "runtime, false"), full)
    busy.rows("UPDATE tasks SET max_concurrency = 1 WHERE job_id = %s", jobs[0])
    busy.claimed(full)
    if is_paused:
        busy.rows("UPDATE jobs SET paused_at = now(), paused_by = 'me' WHERE job_id = %s", jobs[1])
    busy.rows("VACUUM ANALYZE tasks")
    ran: list[RecordedStatement] = []
    try:
        async with recording_connection(busy.live.dsns.state, HOT_OPTIONS, ran) as conn:
            assert await ready_claims.claim_ready(conn, "ecs_python", [("w", uuid4())])
            await capped_claims.find_ready(conn, "ecs_python", 20)
        assert len(ran) == 2
        seen = await plans(busy.live.dsns.state, HOT_OPTIONS, ran)
        assert [fault for query, plan in seen for fault in find_faults(query, plan)] == []
    finally:
        busy.rows("UPDATE jobs SET paused_at = NULL, paused_by = NULL WHERE job_id = %s", jobs[1])
        for job_id in jobs:
            busy.rows("DELETE FROM tasks WHERE job_id = %s", job_id)
