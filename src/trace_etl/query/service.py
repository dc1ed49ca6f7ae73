"""The Query Service: checks, pins and runs queries behind one HTTP route."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trace_etl.api.user.query import MAX_ROWS, QueryReply, QueryRequest
from trace_etl.http.app import new_app
from trace_etl.http.problems import problem_response
from trace_etl.http.user_tokens import User, UserDep, UserKeys
from trace_etl.model.errors import Forbidden, TraceError, Unavailable
from trace_etl.objects.opening import open_store
from trace_etl.query import metrics
from trace_etl.query.errors import QueryTimedOut
from trace_etl.query.pins import Pin, PinnedFiles, pin_datasets
from trace_etl.query.pool import QueryAnswer, QueryPool, QueryProcess, open_pool
from trace_etl.query.requests import DatasetView
from trace_etl.query.settings import QuerySettings
from trace_etl.query.slots import FairSlots
from trace_etl.state.catalog import users
from trace_etl.state.db.pool import CONNECTION_ERRORS, Pool, make_pool

_MAX_BODY = 1024 * 1024
_CLIENT_CLOSED_REQUEST = 499
_log = structlog.stdlib.get_logger()


class ClientDisconnected(Exception):
    """The client closed its connection before the answer was ready."""


@dataclass(frozen=True)
class QueryExecutor:
    """Runs queries in processes, with limits for each query and slots shared between users."""

    cfg: QuerySettings
    pool: Pool
    processes: QueryPool
    files: PinnedFiles
    slots: FairSlots

    async def answer(self, body: QueryRequest, user: str, request: Request) -> bytes:
        """Return the encoded reply. Raises ClientDisconnected, and the errors of each step."""
        work = asyncio.create_task(self._answer(body, user))
        disconnected = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait({work, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnected
            return work.result()
        finally:
            disconnected.cancel()
            work.cancel()
            await asyncio.wait({work})

    async def _answer(self, body: QueryRequest, user: str) -> bytes:
        started = time.monotonic()
        async with (
            self.slots.take(user, self.cfg.query_wait_seconds),
            self.processes.take() as process,
        ):
            pins, answer = await self._run(process, body)
        elapsed = round((time.monotonic() - started) * 1000, 1)
        _log.info(
            "query_answered",
            datasets=[p.name for p in pins],
            rows=answer.row_count,
            truncated=answer.truncated,
            elapsed_ms=elapsed,
        )
        return _encode_reply(answer, pins, elapsed)

    async def _run(
        self, process: QueryProcess, body: QueryRequest
    ) -> tuple[list[Pin], QueryAnswer]:
        """Check, pin and run a query within its time. Raises QueryTimedOut."""
        cfg, limits = self.cfg, self.cfg.limits(body.limit)
        try:
            async with asyncio.timeout(cfg.query_seconds):
                tables = await process.check(body.sql, limits)
                pins = await pin_datasets(self.pool, cfg.org_id, tables)
                views = await asyncio.to_thread(self._make_views, pins)
                return pins, await process.run(body.sql, views, limits, cfg.data_dsn)
        except TimeoutError as error:
            raise QueryTimedOut.of(
                f"ran longer than {limits.seconds:g} s and was stopped"
            ) from error

    def _make_views(self, pins: list[Pin]) -> list[DatasetView]:
        return [DatasetView(p.name, self.files.list_uris(p), p.columns, p.table) for p in pins]


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _encode_reply(answer: QueryAnswer, pins: list[Pin], elapsed_ms: float) -> bytes:
    return orjson.dumps(
        {
            "columns": answer.columns,
            "rows": orjson.Fragment(b"[" + answer.rows + b"]"),
            "row_count": answer.row_count,
            "truncated": answer.truncated,
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
    """Open the database pool and the query processes, and yield the app."""
    async with (
        make_pool(cfg.state_dsn, size=cfg.pool_size) as pool,
        open_pool(cfg.query_slots, cfg.limits(MAX_ROWS)) as processes,
    ):
        slots = FairSlots(cfg.query_slots, cfg.slots_per_user, cfg.query_queue_per_user)
        yield make_app(
            cfg,
            QueryExecutor(cfg, pool, processes, PinnedFiles(open_store(cfg.objects_url)), slots),
        )


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
                answer = await queries.answer(body, user.name, request)
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
        metrics.SLOTS.set(queries.slots.free)
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
