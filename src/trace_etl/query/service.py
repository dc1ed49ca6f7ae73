"""The Query Service put together: gate, pins, engines, and the one route."""

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
from trace_etl.query import metrics as figures
from trace_etl.query.engine import Limits, Result, Run, View
from trace_etl.query.errors import QueryTimedOut
from trace_etl.query.pins import Files, Pin, pin
from trace_etl.query.settings import QuerySettings
from trace_etl.query.sql_guard import Gate
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool, make_pool

_INTERRUPT_EVERY = 0.05
_MAX_BODY = 1024 * 1024
_CLIENT_GONE = 499
T = TypeVar("T")
_log = structlog.stdlib.get_logger()


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class Queries:
    """Runs queries: a few at once, each for a while, none for nobody."""

    cfg: QuerySettings
    pool: Pool
    gate: Gate
    files: Files
    slots: asyncio.Semaphore
    threads: ThreadPoolExecutor
    busy: set[int] = field(default_factory=set[int])

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return self.cfg.query_slots - len(self.busy)

    async def answer(self, body: QueryRequest, request: Request) -> bytes:
        """The reply, encoded. Raises what the gate, the pins and the engine raise."""
        began = time.monotonic()
        query = await self._in_thread(self.gate.admit, body.sql)
        async with self._slot():
            pins = await pin(self.pool, self.cfg.org_id, query)
            views = await self._in_thread(self._views, pins)
            limits = Limits(
                body.limit,
                self.cfg.query_memory,
                self.cfg.query_threads,
                seconds=self.cfg.query_seconds,
                table_bytes=self.cfg.query_table_bytes,
            )
            run = Run(body.sql, views, limits, self.cfg.data_dsn)
            result = await self._supervised(run, request)
        elapsed = round((time.monotonic() - began) * 1000, 1)
        _log.info(
            "query_answered",
            datasets=[p.name for p in pins],
            rows=len(result.rows),
            truncated=result.truncated,
            elapsed_ms=elapsed,
        )
        return _encoded(result, pins, elapsed)

    def _views(self, pins: list[Pin]) -> list[View]:
        return [View(p.name, self.files.of(p), p.columns, p.table) for p in pins]

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self.cfg.query_wait_seconds):
                await self.slots.acquire()
        except TimeoutError as error:
            raise Unavailable("too many queries run at this moment; try again") from error
        mark = id(asyncio.current_task())
        self.busy.add(mark)
        try:
            yield
        finally:
            self.busy.discard(mark)
            self.slots.release()

    async def _supervised(self, run: Run, request: Request) -> Result:
        """Run it. Raises QueryTimedOut when it takes too long, ClientGone when its caller left."""
        work = asyncio.ensure_future(self._in_thread(run.execute))
        left = asyncio.create_task(_left(request))
        try:
            await asyncio.wait(
                {work, left},
                timeout=self.cfg.query_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work.done():
                return work.result()
            raise ClientGone if left.done() else QueryTimedOut(self.cfg.query_seconds)
        finally:
            left.cancel()
            await _end(run, work)

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *args)


async def _left(request: Request) -> None:
    """Returns when the caller hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _end(run: Run, work: "asyncio.Future[Result]") -> None:
    """Wait for the engine, stopping it if it still runs: only then its slot is free."""
    while not work.done():
        run.stop()
        await asyncio.wait({work}, timeout=_INTERRUPT_EVERY)
    if not work.cancelled():
        work.exception()  # seen: a stopped engine's complaint is nobody's business


def _encoded(result: Result, pins: list[Pin], elapsed_ms: float) -> bytes:
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
async def running(cfg: QuerySettings) -> AsyncGenerator[FastAPI]:
    """The app, with its pool open and its threads alive."""
    # A thread more than slots: parsing must not wait for queries.
    with ThreadPoolExecutor(cfg.query_slots + 1, "query") as threads:
        async with make_pool(cfg.state_dsn, size=cfg.pool_size) as pool:
            queries = Queries(
                cfg,
                pool,
                Gate(),
                Files(open_store(cfg.objects_url)),
                asyncio.Semaphore(cfg.query_slots),
                threads,
            )
            yield make_app(cfg, queries)


def make_app(cfg: QuerySettings, queries: Queries) -> FastAPI:
    """The routes over the given queries."""
    app = new_app("Trace Query Service", max_body=_MAX_BODY)
    app.state.user_keys = UserKeys(cfg.user_keys_dir)
    for kind in CONNECTION_ERRORS:
        app.add_exception_handler(kind, _state_unavailable)

    @app.post("/v1/query", response_model=QueryReply, tags=["query"])
    async def query(body: QueryRequest, user: UserDep, request: Request) -> Response:
        """Run one SELECT over the published datasets as they are committed now."""
        await _check_caller(queries.pool, user, cfg.org_id)
        try:
            with figures.SECONDS.time():
                answer = await queries.answer(body, request)
        except ClientGone:
            figures.QUERIES.labels("client_gone").inc()
            return Response(status_code=_CLIENT_GONE)
        except TraceError as refused:
            figures.QUERIES.labels(refused.code).inc()
            raise
        figures.QUERIES.labels("ok").inc()
        return Response(answer, media_type="application/json")

    @app.get("/metrics", response_class=Response, tags=["metrics"])
    async def metrics(user: UserDep) -> Response:
        """Counters of this process, in Prometheus' text format."""
        await _check_caller(queries.pool, user, cfg.org_id)
        figures.SLOTS.set(queries.free)
        return Response(generate_latest(figures.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return app


async def _check_caller(pool: Pool, user: User, org_id: UUID) -> None:
    """Any role may query. Raises Forbidden."""
    if user.org_id != org_id:
        raise Forbidden("this Query Service serves another organisation")
    async with pool.connection() as conn:
        if await users.get_role(conn, user.org_id, user.name) is None:
            raise Forbidden(f"user {user.name!r} is unknown or disabled")


async def _state_unavailable(request: Request, error: Exception) -> JSONResponse:
    _log.warning("state_unavailable", path=request.url.path, error=repr(error))
    return problem_response(Unavailable("Postgres state does not answer; try again"))
