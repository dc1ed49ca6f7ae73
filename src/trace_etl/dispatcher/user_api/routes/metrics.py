"""Prometheus metrics: counters of this process, and gauges of the caller's org."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trace_etl.api.user.tasks.pressure import QueueItem
from trace_etl.api.user.views.overview import FollowedChain
from trace_etl.dispatcher import metrics as process
from trace_etl.dispatcher.user_api.context import CallerDep, Context, ContextDep
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.feed import metrics as stored
from trace_etl.state.feed import overview
from trace_etl.state.flow import loads

router = APIRouter(tags=["metrics"])
CACHE_SECONDS = 2.0
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


@dataclass(eq=False)
class _Families(Collector):
    families: list[Metric]

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(user: CallerDep, ctx: ContextDep) -> Response:
    """Return counters of this process and gauges of the caller's org in the Prometheus text format."""
    process.LISTENERS.set(ctx.changes.listeners)
    cached = ctx.scrapes.get(user.org_id)
    # Cached, so that frequent scrapes do not load Postgres.
    if cached is None or time.monotonic() - cached[0] > CACHE_SECONDS:
        cached = ctx.scrapes[user.org_id] = (time.monotonic(), await _render_org(ctx, user.org_id))
    body = generate_latest(process.REGISTRY) + cached[1]
    return Response(body, media_type=CONTENT_TYPE_LATEST)


async def _render_org(ctx: Context, org_id: UUID) -> bytes:
    async with snapshot(ctx.pool) as conn:
        families = [
            *_measure_queues(await stored.queues(conn, org_id)),
            *_measure_running(await stored.running(conn, org_id)),
            _measure_retries(await stored.retrying(conn, org_id)),
            _measure_pauses(await stored.paused(conn, org_id)),
            *_measure_pressure(
                await loads.list_queues(conn, org_id),
                await loads.count_deferred_events(conn, org_id),
            ),
            *_measure_outbox(await stored.outbox(conn, org_id)),
            *_measure_chains(await overview.list_chains(conn, org_id)),
            *_measure_unused_storage(await stored.unused_storage(conn, org_id)),
        ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


def _measure_queues(rows: list[stored.QueuedTasks]) -> list[Metric]:
    labels = ["dag", "job", "runtime", "tier"]
    depth = GaugeMetricFamily("trace_queue_depth", "Queued tasks.", labels=labels)
    age = GaugeMetricFamily(
        "trace_queue_oldest_seconds", "Age of the oldest queued task.", labels=labels
    )
    for q in rows:
        values = [q.dag, q.job, q.runtime, "bulk" if q.bulk else "normal"]
        depth.add_metric(values, q.depth)
        age.add_metric(values, q.age)
    return [depth, age]


def _measure_running(rows: list[stored.RunningTasks]) -> list[Metric]:
    jobs = GaugeMetricFamily("trace_tasks_running", "Running tasks.", labels=["dag", "job"])
    operators = GaugeMetricFamily(
        "trace_operator_in_flight", "Running attempts, by operator.", labels=["operator"]
    )
    by_job: dict[tuple[str, str], int] = {}
    by_operator: dict[str, int] = {}
    for r in rows:
        by_job[r.dag, r.job] = by_job.get((r.dag, r.job), 0) + r.count
        by_operator[r.operator] = by_operator.get(r.operator, 0) + r.count
    for labels, count in by_job.items():
        jobs.add_metric(list(labels), count)
    for operator, count in by_operator.items():
        operators.add_metric([operator], count)
    return [jobs, operators]


def _measure_retries(rows: list[tuple[str, str, int]]) -> Metric:
    family = GaugeMetricFamily(
        "trace_tasks_retrying",
        "Tasks that failed and wait for their next attempt.",
        labels=["dag", "job"],
    )
    for dag, job, count in rows:
        family.add_metric([dag, job], count)
    return family


def _measure_pauses(rows: list[tuple[str, str, str, str, str]]) -> Metric:
    family = GaugeMetricFamily(
        "trace_job_paused",
        "1 for each pause of a job.",
        labels=["dag", "job", "tier", "reason", "by"],
    )
    for labels in dict.fromkeys(rows):
        family.add_metric(list(labels), 1)
    return family


def _measure_pressure(queues: list[QueueItem], deferred: int) -> list[Metric]:
    limits = GaugeMetricFamily(
        "trace_queue_limit",
        "Queue limits above which upstream jobs are paused.",
        labels=["dag", "job", "of"],
    )
    tripped = GaugeMetricFamily(
        "trace_queue_pushes_back",
        "Number of jobs paused by a queue above its limit.",
        labels=["dag", "job", "sheds", "reason"],
    )
    for q in queues:
        for limit_kind, limit in (("depth", q.max_queue_depth), ("age", q.max_queue_age)):
            if limit is not None:
                limits.add_metric([q.dag, q.job, limit_kind], limit)
        if q.sheds is not None:
            tripped.add_metric([q.dag, q.job, q.sheds, q.reason or ""], q.pausing)
    events = GaugeMetricFamily(
        "trace_deferred_events", "Events that wait for paused jobs.", value=deferred
    )
    return [limits, tripped, events]


def _measure_outbox(counts: list[tuple[str, bool, int, float]]) -> list[Metric]:
    labels = ["kind", "state"]
    rows = GaugeMetricFamily("trace_outbox_rows", "Rows of the outbox.", labels=labels)
    age = GaugeMetricFamily("trace_outbox_oldest_seconds", "Age of the oldest row.", labels=labels)
    for kind, failed, count, seconds in counts:
        values = [kind, "failed" if failed else "pending"]
        rows.add_metric(values, count)
        age.add_metric(values, seconds)
    return [rows, age]


def _measure_chains(chains: list[FollowedChain]) -> list[Metric]:
    labels = ["dag", "job"]
    head = GaugeMetricFamily(
        "trace_chain_head_block", "Head of a followed chain, as last seen.", labels=labels
    )
    blocks = GaugeMetricFamily(
        "trace_chain_lag_blocks", "Blocks of a followed chain that are not written.", labels=labels
    )
    seconds = GaugeMetricFamily(
        "trace_chain_lag_seconds",
        "Time between the last written block and the head.",
        labels=labels,
    )
    silence = GaugeMetricFamily(
        "trace_chain_silent_seconds", "Time since the running follower saw the head.", labels=labels
    )
    for chain in chains:
        for family, value in (
            (head, chain.head),
            (blocks, chain.lag_blocks),
            (seconds, chain.lag_seconds),
            (silence, chain.silent_seconds),
        ):
            if value is not None:
                family.add_metric([chain.dag, chain.job], value)
    return [head, blocks, seconds, silence]


def _measure_unused_storage(counts: list[tuple[str, int, int]]) -> list[Metric]:
    prefixes = GaugeMetricFamily(
        "trace_unused_storage_prefixes", "Prefixes that nothing refers to.", labels=["kind"]
    )
    size = GaugeMetricFamily(
        "trace_unused_storage_bytes", "Bytes of prefixes that nothing refers to.", labels=["kind"]
    )
    for kind, count, total in counts:
        prefixes.add_metric([kind], count)
        size.add_metric([kind], total)
    return [prefixes, size]
