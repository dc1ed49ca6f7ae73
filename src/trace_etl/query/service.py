"""The Query Service: its HTTP app and the routes for people."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trace_etl.api.body import Name
from trace_etl.api.user.data.query import MAX_ROWS, DatasetSnapshot, QueryReply, QueryRequest
from trace_etl.http.app import add_routes, new_app
from trace_etl.http.client_connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnected,
    run_while_connected,
)
from trace_etl.http.problems import problem_response
from trace_etl.http.user_tokens import User, UserDep, UserKeys, current_user
from trace_etl.model.errors import Unauthenticated, Unavailable
from trace_etl.model.result_formats import MEDIA_TYPES
from trace_etl.objects.store import ObjectStore
from trace_etl.query import metrics
from trace_etl.query.access import make_access
from trace_etl.query.audit import AuditEntry, AuditLog, open_audit_log
from trace_etl.query.execution import Query, QueryExecutor
from trace_etl.query.malformed_requests import USER_QUERY_PATH, MalformedRequests
from trace_etl.query.pins import PinnedFiles
from trace_etl.query.processes.pool import open_pool
from trace_etl.query.requests import QueryLimits, TableReference
from trace_etl.query.settings import QuerySettings
from trace_etl.query.slots import make_task_slots, make_user_slots
from trace_etl.query.streaming import (
    RecentFailures,
    ResultStream,
    check_http_version,
)
from trace_etl.query.tasks.task_access import RecordedReads
from trace_etl.query.tasks.task_queries import TaskQueries, make_router
from trace_etl.query.tasks.task_tokens import TaskTokenVerifier, open_task_keys
from trace_etl.state.db.pool import CONNECTION_ERRORS, make_pool, open_reader

_MAX_BODY = 1024 * 1024
_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class UserQueries:
    """Answers the queries of people, and records each of them."""

    cfg: QuerySettings
    executor: QueryExecutor
    audit: AuditLog

    async def answer(self, body: QueryRequest, user: User) -> bytes:
        """Return the whole reply as JSON."""
        async with self.audit.record(AuditEntry(user.org_id, user.name)) as entry:
            return await self.executor.answer(self._prepare(body, user, entry))

    async def stream(self, body: QueryRequest, user: User, output: ResultStream) -> None:
        """Send the result while the query runs."""
        async with self.audit.record(AuditEntry(user.org_id, user.name)) as entry:
            entry.query_id = output.query_id
            await self.executor.stream(self._prepare(body, user, entry), output)

    def _prepare(self, body: QueryRequest, user: User, entry: AuditEntry) -> Query:
        cfg = self.cfg
        return Query(
            body.sql,
            body.params,
            body.format,
            self._choose_limits(body),
            cfg.query_seconds,
            cfg.query_stream_seconds,
            make_access(user),
            entry,
        )

    def _choose_limits(self, body: QueryRequest) -> QueryLimits:
        if not body.is_streamed:
            return self.cfg.limits(body.limit or MAX_ROWS)
        seconds = self.cfg.query_stream_seconds  # Postgres must not stop a scan whose client reads
        return replace(self.cfg.limits(body.limit), bytes=None, seconds=seconds)

    async def read_snapshot(self, name: str, user: User) -> DatasetSnapshot:
        """List the committed files of a dataset, for a client that reads them directly."""
        executor = self.executor
        async with self.audit.record(AuditEntry(user.org_id, user.name)) as entry:
            tables = [TableReference(name, None, None)]
            entry.name_tables(tables)
            (pin,) = await make_access(user).pin(executor.state, tables)
            entry.name_pins([pin])
            life = self.cfg.query_scan_seconds
            expires_at = datetime.now(UTC) + timedelta(seconds=life)
            (view,) = await executor.make_views([pin], life)
        return DatasetSnapshot(
            **pin.describe(),
            files=view.files,
            expires_at=None if executor.files.is_local else expires_at,
            has_table=pin.table is not None,
        )


@asynccontextmanager
async def open_app(cfg: QuerySettings) -> AsyncGenerator[FastAPI]:
    """Open the database pool and the query processes, and yield the app."""
    async with (
        make_pool(cfg.state_dsn, size=cfg.pool_size) as pool,
        open_reader(pool, cfg.pool_size) as state,
        open_audit_log(cfg.state_dsn, is_durable=cfg.query_audit_durable) as audit,
        open_pool(cfg.query_slots, cfg.limits(MAX_ROWS)) as processes,
    ):
        slots = make_user_slots(cfg.query_slots, cfg.slots_per_user, cfg.query_queue_per_user)
        store = cfg.open_objects()
        executor = QueryExecutor(
            state, processes, PinnedFiles(store), slots, cfg.query_wait_seconds, cfg.data_dsn
        )
        app = make_app(cfg, UserQueries(cfg, executor, audit))
        async with _open_task_queries(cfg, executor, audit, store) as tasks:
            if tasks is not None:
                add_routes(app, make_router(tasks))
            MalformedRequests(audit, tasks).install(app)
            yield app


@asynccontextmanager
async def _open_task_queries(
    cfg: QuerySettings, executor: QueryExecutor, audit: AuditLog, store: ObjectStore
) -> AsyncGenerator[TaskQueries | None]:
    """Open what the queries of tasks need. None without the address of a Dispatcher."""
    if cfg.dispatcher_url is None or cfg.tls_ca is None:
        yield None
        return
    slots = make_task_slots(
        cfg.task_query_slots,
        cfg.task_query_slots_per_task,
        cfg.task_query_queue_per_task,
    )
    executor = replace(executor, slots=slots, wait_seconds=cfg.task_query_wait_seconds)
    async with open_task_keys(cfg.dispatcher_url, cfg.tls_ca) as keys:
        tokens = TaskTokenVerifier(keys)
        yield TaskQueries(cfg, executor, audit, tokens, RecordedReads(), store)


def make_app(cfg: QuerySettings, queries: UserQueries) -> FastAPI:
    """Make the HTTP app."""
    app = new_app("Trace Query Service", max_body=_MAX_BODY)
    app.state.user_keys = UserKeys(cfg.user_keys_dir)
    for kind in CONNECTION_ERRORS:
        app.add_exception_handler(kind, _report_state_unavailable)
    failures, state = RecentFailures(), queries.executor.state

    @app.post(USER_QUERY_PATH, response_model=QueryReply, tags=["query"])
    async def query(body: QueryRequest, user: QueryUserDep, request: Request) -> Response:
        """Run one SELECT over the committed partitions of the published datasets."""
        if body.is_streamed:
            check_http_version(request.scope)
            return ResultStream(
                lambda output: queries.stream(body, user, output),
                lambda query_id, error: failures.add(query_id, user, error),
                MEDIA_TYPES[body.format],
            )
        try:
            answer = await run_while_connected(queries.answer(body, user), request.receive)
        except ClientDisconnected:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return Response(answer, media_type="application/json")

    @app.get("/v1/query/{query_id}/failure", tags=["query"])
    async def get_failure(query_id: UUID, user: UserDep) -> dict[str, Any]:
        """Return the problem document of a query whose result was aborted in the middle."""
        await make_access(user).authorize(state)
        return failures.get(query_id, user)

    @app.get("/v1/snapshots/{name}", tags=["query"])
    async def get_snapshot(name: Name, user: UserDep) -> DatasetSnapshot:
        """List the files of a dataset that are committed now, for clients that read them directly."""
        return await queries.read_snapshot(name, user)

    @app.get("/metrics", response_class=Response, tags=["metrics"])
    async def get_metrics(user: UserDep) -> Response:
        """Counters of this process, in the Prometheus text format."""
        await make_access(user).authorize(state)
        metrics.SLOTS.set(queries.executor.slots.free)
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return app


async def _count_unauthenticated(request: Request) -> User:
    try:
        return await current_user(request)
    except Unauthenticated as error:
        metrics.QUERIES.labels(error.code).inc()
        raise


QueryUserDep = Annotated[User, Depends(_count_unauthenticated)]


async def _report_state_unavailable(request: Request, error: Exception) -> JSONResponse:
    _log.warning("state_unavailable", path=request.url.path, error=repr(error))
    return problem_response(Unavailable("Postgres state does not answer; try again"))
