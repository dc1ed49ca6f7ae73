"""The Query Service: checks, pins and runs queries behind one HTTP route."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trace_etl.api.user.query import QueryReply, QueryRequest
from trace_etl.http.app import new_app
from trace_etl.http.problems import problem_response
from trace_etl.http.user_tokens import User, UserDep, UserKeys
from trace_etl.model.errors import Forbidden, TraceError, Unavailable
from trace_etl.objects.opening import open_store
from trace_etl.query import metrics
from trace_etl.query.engine import DatasetView, QueryLimits, QueryResult, QueryRun
from trace_etl.query.errors import QueryTimedOut
from trace_etl.query.pins import Pin, PinnedFiles, pin_datasets
from trace_etl.query.settings import QuerySettings
from trace_etl.query.sql_guard import SqlGuard
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool, make_pool

_INTERRUPT_SECONDS = 0.05
_MAX_BODY = 1024 * 1024
_CLIENT_CLOSED_REQUEST = 499
T = TypeVar("T")
_log = structlog.stdlib.get_logger()


class ClientDisconnected(Exception):
    """The client closed its connection before the answer was ready."""


@dataclass(frozen=True)
class QueryExecutor:
    """Runs queries with limited concurrency and time; stops those whose client disconnects."""

    cfg: QuerySettings
    pool: Pool
    guard: SqlGuard
    files: PinnedFiles
    slots: asyncio.Semaphore
    threads: ThreadPoolExecutor
    running: set[int] = field(default_factory=set[int])

    @property
    def free_slots(self) -> int:
        """Queries that could start now."""
        return self.cfg.query_slots - len(self.running)

    async def answer(self, body: QueryRequest, request: Request) -> bytes:
        """Return the encoded reply. Raises the errors of the SQL guard, the pins and the engine."""
        started = time.monotonic()
        query = await self._in_thread(self.guard.check, body.sql)
        async with self._take_slot():
            pins = await pin_datasets(self.pool, self.cfg.org_id, query)
            views = await self._in_thread(self._make_views, pins)
            limits = QueryLimits(
                body.limit,
                self.cfg.query_memory,
                self.cfg.query_threads,
                seconds=self.cfg.query_seconds,
                table_bytes=self.cfg.query_table_bytes,
            )
            run = QueryRun(body.sql, views, limits, self.cfg.data_dsn)
            result = await self._supervise(run, request)
        elapsed = round((time.monotonic() - started) * 1000, 1)
        _log.info(
            "query_answered",
            datasets=[p.name for p in pins],
            rows=len(result.rows),
            truncated=result.truncated,
            elapsed_ms=elapsed,
        )
        return _encode_reply(result, pins, elapsed)

    def _make_views(self, pins: list[Pin]) -> list[DatasetView]:
        return [DatasetView(p.name, self.files.list_uris(p), p.columns, p.table) for p in pins]

    @asynccontextmanager
    async def _take_slot(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self.cfg.query_wait_seconds):
                await self.slots.acquire()
        except TimeoutError as error:
            raise Unavailable("too many queries are running; try again later") from error
        query_id = id(asyncio.current_task())
        self.running.add(query_id)
        try:
            yield
        finally:
            self.running.discard(query_id)
            self.slots.release()

    async def _supervise(self, run: QueryRun, request: Request) -> QueryResult:
        """Run a query. Raises QueryTimedOut or ClientDisconnected."""
        work = asyncio.ensure_future(self._in_thread(run.execute))
        disconnected = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {work, disconnected},
                timeout=self.cfg.query_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work.done():
                return work.result()
            if disconnected.done():
                raise ClientDisconnected
            raise QueryTimedOut(self.cfg.query_seconds)
        finally:
            disconnected.cancel()
            await _stop_and_wait(run, work)

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *args)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stop_and_wait(run: QueryRun, work: "asyncio.Future[QueryResult]") -> None:
    """Stop the engine if it still runs, and wait for its end: it occupies a slot until then."""
    while not work.done():
        run.stop()
        await asyncio.wait({work}, timeout=_INTERRUPT_SECONDS)
    if not work.cancelled():
        work.exception()  # mark as retrieved: the error of a stopped engine is of no interest


def _encode_reply(result: QueryResult, pins: list[Pin], elapsed_ms: float) -> bytes:
    return orjson.dumps(
        {
            "columns": result.columns,
            "rows": [orjson.Fragment(row) for row in result.rows],
            "row_count": len(result.rows),
            "truncated": result.truncated,
            "elapsed_ms": elapsed_ms,
            "pinned": [
                {
                    "dataset": p.name,
                    "dataset_version": p.dataset_version,
                    "partitions": len(p.partitions),
                }
                for p in pins
            ],
        }
    )


@asynccontextmanager
async def open_app(cfg: QuerySettings) -> AsyncGenerator[FastAPI]:
    """Open the pool and the threads, and yield the app."""
    # One thread more than slots: the SQL guard must not wait for running queries.
    with ThreadPoolExecutor(cfg.query_slots + 1, "query") as threads:
        async with make_pool(cfg.state_dsn, size=cfg.pool_size) as pool:
            queries = QueryExecutor(
                cfg,
                pool,
                SqlGuard(),
                PinnedFiles(open_store(cfg.objects_url)),
                asyncio.Semaphore(cfg.query_slots),
                threads,
            )
            yield make_app(cfg, queries)


def make_app(cfg: QuerySettings, queries: QueryExecutor) -> FastAPI:
    """Make the HTTP app."""
    app = new_app("Trace Query Service", max_body=_MAX_BODY)
    app.state.user_keys = UserKeys(cfg.user_keys_dir)
    for kind in CONNECTION_ERRORS:
        app.add_exception_handler(kind, _report_state_unavailable)

    @app.post("/v1/query", response_model=QueryReply, tags=["query"])
    async def query(body: QueryRequest, user: UserDep, request: Request) -> Response:
        """Run one SELECT over the committed partitions of the published datasets."""
        await _check_caller(queries.pool, user, cfg.org_id)
        try:
            with metrics.SECONDS.time():
                answer = await queries.answer(body, request)
        except ClientDisconnected:
            metrics.QUERIES.labels("client_gone").inc()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except TraceError as error:
            metrics.QUERIES.labels(error.code).inc()
            raise
        metrics.QUERIES.labels("ok").inc()
        return Response(answer, media_type="application/json")

    @app.get("/metrics", response_class=Response, tags=["metrics"])
    async def get_metrics(user: UserDep) -> Response:
        """Counters of this process, in the Prometheus text format."""
        await _check_caller(queries.pool, user, cfg.org_id)
        metrics.SLOTS.set(queries.free_slots)
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return app


async def _check_caller(pool: Pool, user: User, org_id: UUID) -> None:
    """Raise Forbidden unless the caller is an active user of this organisation, in any role."""
    if user.org_id != org_id:
        raise Forbidden("this Query Service serves another organisation")
    async with pool.connection() as conn:
        if await users.get_role(conn, user.org_id, user.name) is None:
            raise Forbidden(f"user {user.name!r} is unknown or disabled")


async def _report_state_unavailable(request: Request, error: Exception) -> JSONResponse:
    _log.warning("state_unavailable", path=request.url.path, error=repr(error))
    return problem_response(Unavailable("Postgres state does not answer; try again"))
