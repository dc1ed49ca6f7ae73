"""Assemble the Dispatcher: pools, task lifecycle, loops and the two HTTP apps."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from trace_etl.dag.runtimes import Runtimes, load_runtimes
from trace_etl.dispatcher.inline.runner import InlineRunner
from trace_etl.dispatcher.invocations.invoker import LocalInvoker
from trace_etl.dispatcher.invocations.starter import Invocations
from trace_etl.dispatcher.loop import Loop
from trace_etl.dispatcher.loops.backfill_feeder import BackfillFeeder
from trace_etl.dispatcher.loops.backpressure import Backpressure
from trace_etl.dispatcher.loops.delivery_numberer import DeliveryNumberer
from trace_etl.dispatcher.loops.generation_swapper import GenerationSwapper
from trace_etl.dispatcher.loops.history_retention import HistoryRetention
from trace_etl.dispatcher.loops.lease_reaper import INTERVAL, LeaseReaper
from trace_etl.dispatcher.loops.notifier import Notifier
from trace_etl.dispatcher.loops.outbox_publisher import OutboxPublisher
from trace_etl.dispatcher.loops.reconciler import Reconciler
from trace_etl.dispatcher.loops.retry_scheduler import RetryScheduler
from trace_etl.dispatcher.loops.source_monitor import SourceMonitor
from trace_etl.dispatcher.loops.storage_lister import StorageLister
from trace_etl.dispatcher.loops.storage_sweeper import StorageSweeper
from trace_etl.dispatcher.loops.task_counter import TaskCounter
from trace_etl.dispatcher.loops.wake_up_sweeper import WakeUpSweeper
from trace_etl.dispatcher.metrics import CountRequests
from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.task_api import openapi
from trace_etl.dispatcher.task_api.authorization.tokens import PemSigner, TaskTokens
from trace_etl.dispatcher.task_api.authorization.worker_tokens import WorkerTokens
from trace_etl.dispatcher.task_api.batch_writer import MAX_CONNECTIONS
from trace_etl.dispatcher.task_api.buffers import Buffers
from trace_etl.dispatcher.task_api.lifecycle import Lifecycle, Parts
from trace_etl.dispatcher.task_api.listener import InternalApi
from trace_etl.dispatcher.task_api.payloads import Payloads
from trace_etl.dispatcher.task_api.retired_tables import RetiredTableCheck
from trace_etl.dispatcher.task_objects.attempt_scopes import AttemptScopes
from trace_etl.dispatcher.task_objects.credentials import (
    CredentialMinting,
    Exchanger,
    MissingRole,
    ObjectEndpoints,
)
from trace_etl.dispatcher.task_objects.objects import TaskObjects
from trace_etl.dispatcher.task_objects.written_bytes import WrittenBytes
from trace_etl.dispatcher.user_api.change_feed import ChangeFeed
from trace_etl.dispatcher.user_api.context import Context
from trace_etl.dispatcher.user_api.deploy_runner import DeployRunner
from trace_etl.dispatcher.user_api.roles import check_declared
from trace_etl.dispatcher.user_api.routers import ROUTERS
from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.http.app import add_routes, new_app
from trace_etl.http.clients.dispatcher_client import token_reader
from trace_etl.http.problems import problem_response
from trace_etl.http.user_tokens import ServiceKeys, UserKeys
from trace_etl.model.errors import Unavailable
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.retry import TASK_RETRY, Backoff
from trace_etl.queues.queue import Queue, QueueProducer
from trace_etl.state.db.pool import (
    CONNECTION_ERRORS,
    Pool,
    ReusedConnections,
    make_pool,
    transaction,
)
from trace_etl.state.flow import operator_caps

_NOTIFICATIONS = 20  # notifications that are delivered at once
_BATCH = 500
_TABLES_PER_SWEEP = 10_000
_PREFIXES_PER_SWEEP = 100
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Service:
    """A running Dispatcher without its listeners."""

    internal: InternalApi
    user: FastAPI
    lifecycle: Lifecycle
    publisher: OutboxPublisher
    reaper: LeaseReaper
    retries: RetryScheduler
    sweeper: WakeUpSweeper
    retention: HistoryRetention
    notifier: Notifier
    task_counter: TaskCounter
    numberer: DeliveryNumberer
    swapper: GenerationSwapper
    backpressure: Backpressure
    feeder: BackfillFeeder
    changes: ChangeFeed
    reconciler: Reconciler
    sources: SourceMonitor
    storage_sweeper: StorageSweeper
    storage_lister: StorageLister
    sweeps_storage: bool
    wake: WakeEvents
    invocations: Invocations

    def loops(self) -> list[Loop]:
        return [*self._list_task_loops(), *self._list_dag_loops(), *self._list_upkeep_loops()]

    def _list_task_loops(self) -> list[Loop]:
        wake, publisher, retries = self.wake, self.publisher, self.retries
        start = self.invocations.start_once
        return [
            Loop("outbox_publisher", publisher.publish_once, 5.0, wake.outbox, publisher.next_due),
            Loop("lease_reaper", self.reaper.reap_once, INTERVAL, next_due=self.reaper.next_due),
            Loop("retry_scheduler", retries.retry_once, 5.0, wake.retries, retries.next_due),
            Loop("invocations", start, 2.0, wake.invocations, min_pause=0.01),
            Loop("wake_up_sweeper", self.sweeper.sweep_once, 20.0),
            Loop("reconciler", self.reconciler.reconcile_once, 15.0),
            Loop("source_monitor", self.sources.supervise_once, 2.0),
        ]

    def _list_dag_loops(self) -> list[Loop]:
        wake, swapper = self.wake, self.swapper
        balance, feed = self.backpressure.balance_once, self.feeder.feed_once
        balance_due, feed_due = self.backpressure.next_due, self.feeder.next_due
        return [
            Loop("generation_swapper", swapper.swap_once, 5.0, wake.generations, swapper.next_due),
            Loop("backpressure", balance, 5.0, wake.pressure, balance_due, min_pause=0.1),
            Loop("backfill_feeder", feed, 5.0, wake.backfills, feed_due, min_pause=0.1),
        ]

    def _list_upkeep_loops(self) -> list[Loop]:
        sweeper = self.storage_sweeper
        sweep = sweeper.sweep_once if self.sweeps_storage else sweeper.measure_once
        return [
            Loop("storage_sweeper", sweep, 60.0),
            Loop("storage_lister", self.storage_lister.list_once, 300.0, min_pause=1.0),
            Loop("history_retention", self.retention.delete_once, 600.0),
            Loop("notifier", self.notifier.notify_once, 10.0, min_pause=1.0),
            Loop("task_counter", self.task_counter.count_once, 30.0),
            Loop("delivery_numberer", self.numberer.number_once, 5.0, min_pause=0.1),
        ]


@asynccontextmanager
async def running(cfg: DispatcherSettings, queue: Queue) -> AsyncGenerator[Service]:
    """Open the pools and assemble the service; close the pools on exit."""
    pool = make_pool(cfg.state_dsn, size=cfg.pool_size)
    loop_pool = make_pool(cfg.state_dsn, size=12, checked=False, hot=True)
    writer_pool = make_pool(cfg.state_dsn, size=MAX_CONNECTIONS, hot=True)
    writer_connections = ReusedConnections(writer_pool)
    producer_opened = queue.producer(call_timeout=cfg.queue_timeout)
    async with pool, loop_pool, writer_pool, producer_opened as producer:
        try:
            async with transaction(pool) as conn:
                await operator_caps.replace_caps(conn, cfg.operator_caps)
            invoker = _open_invoker(cfg)
            shared = _share_parts(cfg, pool, loop_pool, producer)
            yield _assemble(shared, writer_connections, invoker)
            if invoker is not None:
                await invoker.close()
        finally:
            await writer_connections.close()


def _open_invoker(cfg: DispatcherSettings) -> LocalInvoker | None:
    if cfg.invoker_socket is None:
        return None
    return LocalInvoker(cfg.invoker_socket, token_reader(cfg.worker_tokens_file))


@dataclass(frozen=True)
class _SharedParts:
    """Parts that several components of the Dispatcher use."""

    cfg: DispatcherSettings
    pool: Pool
    loop_pool: Pool
    queue: QueueProducer
    wake: WakeEvents
    tokens: TaskTokens
    objects: ObjectStore
    payloads: Payloads
    retry: Backoff
    webhooks: WebhookSecrets
    runtimes: Runtimes


def _share_parts(
    cfg: DispatcherSettings, pool: Pool, loop_pool: Pool, queue: QueueProducer
) -> _SharedParts:
    tokens, objects = TaskTokens(PemSigner(cfg.task_keys_dir)), cfg.open_objects()
    return _SharedParts(
        cfg,
        pool,
        loop_pool,
        queue,
        wake=WakeEvents(),
        tokens=tokens,
        objects=objects,
        payloads=Payloads(pool, tokens, cfg, objects),
        retry=replace(TASK_RETRY, initial=cfg.retry_initial, max_delay=cfg.retry_max),
        webhooks=WebhookSecrets(cfg.open_secrets(), cfg.webhook_window),
        runtimes=load_runtimes(cfg.runtimes_file),
    )


def _assemble(
    shared: _SharedParts, writer_connections: ReusedConnections, invoker: LocalInvoker | None
) -> Service:
    cfg, pool, loop_pool = shared.cfg, shared.pool, shared.loop_pool
    queue, wake, runtimes = shared.queue, shared.wake, shared.runtimes
    parts = Parts(
        pool,
        writer_connections,
        shared.tokens,
        shared.payloads,
        wake,
        shared.objects,
        shared.retry,
    )
    lifecycle = Lifecycle(parts)
    changes = _make_change_feed(cfg, pool)
    slots = runtimes.lambda_slots()
    invocations = Invocations(loop_pool, shared.payloads, invoker, slots, wake)
    sweeper = StorageSweeper(loop_pool, shared.objects, cfg.storage_retention, _PREFIXES_PER_SWEEP)
    restart = Backoff(cfg.source_restart_initial, cfg.source_restart_max)
    return Service(
        internal=_make_internal_api(shared, lifecycle),
        user=_make_user_app(cfg, _make_context(shared, changes, sweeper)),
        lifecycle=lifecycle,
        publisher=_make_publisher(shared, invocations),
        reaper=LeaseReaper(loop_pool, queue, wake, shared.retry, _BATCH, cfg.reaper_grace),
        retries=RetryScheduler(loop_pool, wake, _BATCH),
        sweeper=WakeUpSweeper(
            loop_pool, queue, wake, runtimes, older_seconds=20, batch_size=_BATCH
        ),
        retention=HistoryRetention(loop_pool, cfg.history_retention, cfg.audit_retention, _BATCH),
        notifier=Notifier(loop_pool, shared.webhooks, _NOTIFICATIONS, cfg.outbox_max_tries),
        task_counter=TaskCounter(loop_pool, 100 * _BATCH),
        numberer=DeliveryNumberer(loop_pool, 2 * _BATCH),
        swapper=GenerationSwapper(pool, wake, cfg.swap_every),
        backpressure=Backpressure(loop_pool, wake, cfg.pressure_bulk_delay, _BATCH),
        feeder=BackfillFeeder(loop_pool, wake, cfg.backfill_window),
        changes=changes,
        reconciler=Reconciler(loop_pool, wake, cfg.reconcile_grace, _BATCH),
        sources=SourceMonitor(pool, wake, restart, cfg.source_memory),
        storage_sweeper=sweeper,
        storage_lister=StorageLister(loop_pool, shared.objects, cfg.listing_interval),
        sweeps_storage=cfg.sweep_storage,
        wake=wake,
        invocations=invocations,
    )


def _make_change_feed(cfg: DispatcherSettings, pool: Pool) -> ChangeFeed:
    return ChangeFeed(
        pool,
        poll_interval=cfg.changes_every,
        max_listeners=cfg.changes_clients,
        max_per_user=cfg.changes_clients_per_user,
    )


def _make_internal_api(shared: _SharedParts, lifecycle: Lifecycle) -> InternalApi:
    cfg, pool, objects = shared.cfg, shared.pool, shared.objects
    scopes = AttemptScopes(pool)
    written = WrittenBytes(cfg.max_attempt_bytes)
    return InternalApi(
        lifecycle,
        Buffers(pool, shared.wake),
        shared.tokens,
        WorkerTokens(cfg.worker_tokens_file),
        ServiceKeys(cfg.service_keys_dir),
        RetiredTableCheck(pool, cfg.history_retention, _TABLES_PER_SWEEP),
        CredentialMinting(scopes, _choose_exchanger(cfg, objects)),
        TaskObjects(objects, shared.tokens, scopes, cfg.max_object_bytes, written),
    )


def _make_context(shared: _SharedParts, changes: ChangeFeed, sweeper: StorageSweeper) -> Context:
    cfg = shared.cfg
    manifests = PemSigner(cfg.certificate_keys_dir) if cfg.certificate_keys_dir else None
    return Context(
        shared.pool,
        shared.queue,
        shared.wake,
        changes,
        shared.webhooks,
        DeployRunner(
            shared.pool,
            cfg.state_dsn,
            shared.webhooks,
            shared.runtimes,
            cfg.select_environment(),
        ),
        sweeper,
        manifests,
        cfg.sweep_storage,
        shared.objects,
        shared.runtimes,
    )


def _make_publisher(shared: _SharedParts, invocations: Invocations) -> OutboxPublisher:
    cfg, name = shared.cfg, f"dispatcher:{socket.gethostname()}:{os.getpid()}"
    return OutboxPublisher(
        shared.loop_pool,
        shared.queue,
        InlineRunner(shared.loop_pool, shared.payloads, name, shared.retry),
        _BATCH,
        cfg.outbox_hold,
        cfg.outbox_max_tries,
        shared.wake,
        shared.runtimes,
        invocations,
    )


def _choose_exchanger(cfg: DispatcherSettings, objects: ObjectStore) -> Exchanger:
    if cfg.credentials_role_arn is None:
        return ObjectEndpoints() if isinstance(objects, FileStore) else MissingRole()
    from trace_etl.aws.sts import StsExchanger  # needs the `aws` extra

    return StsExchanger(
        cfg.credentials_role_arn,
        region=cfg.s3_region,
        sts_url=cfg.sts_endpoint,
        s3_url=cfg.s3_endpoint,
    )


def _make_user_app(cfg: DispatcherSettings, context: Context) -> FastAPI:
    app = new_app("Trace", max_body=2 * 1024 * 1024)
    app.state.user_keys = UserKeys(cfg.user_keys_dir)
    app.state.service_keys = ServiceKeys(cfg.service_keys_dir)
    app.state.context = context
    app.add_middleware(CountRequests, listener="user")
    for kind in CONNECTION_ERRORS:
        app.add_exception_handler(kind, _answer_unavailable)
    check_declared(ROUTERS)
    for router in ROUTERS:
        add_routes(app, router)
    openapi.describe(app)
    return app


async def _answer_unavailable(request: Request, error: Exception) -> JSONResponse:
    _log.warning("state_unavailable", path=request.url.path, error=repr(error))
    return problem_response(Unavailable("Postgres state is unavailable; retry the request"))


async def run_loops(service: Service, stop: asyncio.Event) -> None:
    """Run every loop until `stop` is set."""
    async with asyncio.TaskGroup() as group:
        for loop in service.loops():
            group.create_task(loop.run(stop), name=loop.name)
