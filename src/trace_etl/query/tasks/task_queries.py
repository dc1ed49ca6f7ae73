"""Queries of tasks: answered inline within limits, otherwise through an object in scratch."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import orjson
import structlog
from fastapi import APIRouter, Request, Response

from trace_etl.api.task.query import TaskQueryReply, TaskQueryRequest
from trace_etl.api.user.data.query import MAX_ROWS
from trace_etl.http.client_connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnected,
    run_while_connected,
)
from trace_etl.model.errors import Forbidden, Unauthenticated, Unavailable
from trace_etl.model.result_formats import MEDIA_TYPES, ResultFormat
from trace_etl.objects.errors import StorageError
from trace_etl.objects.store import ObjectStore, ObjectWriter
from trace_etl.query import metrics
from trace_etl.query.audit import AuditEntry, AuditLog
from trace_etl.query.errors import QueryTooLarge
from trace_etl.query.execution import FinishedQuery, Query, QueryExecutor
from trace_etl.query.processes.pool import ReceivePiece
from trace_etl.query.settings import QuerySettings
from trace_etl.query.streaming import (
    PINNED_HEADER,
    QUERY_ID_HEADER,
)
from trace_etl.query.tasks.task_access import RecordedReads, TaskAccess
from trace_etl.query.tasks.task_tokens import TaskCapability, TaskTokenVerifier

TASK_QUERY_PATH = "/v1/task/query"
TOKEN_HEADER = "x-trace-task-capability"  # noqa: S105 - the name of a header
_INLINE_BYTES = 10 * 2**20
_SCHEME = "s3://"
_log = structlog.stdlib.get_logger()


class _TooLargeForAnswer(Exception):
    """The encoded result is larger than an answer may be."""


@dataclass(frozen=True)
class TaskQuery(Query):
    """A query of a task."""

    access: TaskAccess


@dataclass(frozen=True)
class TaskQueries:
    """Answers the queries of tasks, and records each of them."""

    cfg: QuerySettings
    executor: QueryExecutor
    audit: AuditLog
    tokens: TaskTokenVerifier
    recorded: RecordedReads
    store: ObjectStore

    async def answer(self, body: TaskQueryRequest, token: str | None) -> Response:
        """Run a query of an attempt. Raises Unauthenticated, LeaseLost, and the errors of queries."""
        try:
            capability = await self.tokens.verify(token)
        except Unauthenticated as error:
            metrics.QUERIES.labels(error.code).inc()
            raise
        caller = AuditEntry(
            capability.org_id, task_id=capability.task_id, attempt=capability.attempt
        )
        async with self.audit.record(caller) as entry:
            capability.require_unexpired()
            access = TaskAccess(capability, self.recorded)
            return await self._answer(body, access, entry)

    async def _answer(
        self, body: TaskQueryRequest, access: TaskAccess, entry: AuditEntry
    ) -> Response:
        query = self._make_query(body, access, entry)
        pieces: list[bytes] = []
        size = 0

        async def collect(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            if size > _INLINE_BYTES:
                raise _TooLargeForAnswer
            pieces.append(piece)

        try:
            finished = await self.executor.execute(query, collect)
        except _TooLargeForAnswer:
            return await self._write_object(body, query)
        if finished.summary.truncated and finished.summary.row_count != body.limit:
            return await self._write_object(body, query)
        if body.format is ResultFormat.JSON:
            return _render_json(entry, finished, rows=b"".join(pieces))
        headers = {
            QUERY_ID_HEADER: str(entry.query_id),
            PINNED_HEADER: orjson.dumps([p.describe() for p in finished.pins]).decode(),
        }
        return Response(b"".join(pieces), media_type=MEDIA_TYPES[body.format], headers=headers)

    def _make_query(
        self, body: TaskQueryRequest, access: TaskAccess, entry: AuditEntry
    ) -> TaskQuery:
        limits = self.cfg.task_limits(min(body.limit or MAX_ROWS, MAX_ROWS))
        seconds = self.cfg.task_query_seconds
        return TaskQuery(
            body.sql, body.params, body.format, limits, seconds, seconds, access, entry
        )

    async def _write_object(self, body: TaskQueryRequest, first: TaskQuery) -> Response:
        """Run the query again, and write its whole result as a Parquet object in scratch."""
        entry = first.entry
        entry.byte_count = 0
        limits = replace(first.limits, rows=body.limit, bytes=None)
        query = replace(first, limits=limits, format=ResultFormat.PARQUET)
        key = _make_scratch_key(query.access.capability, entry)
        try:
            with self.store.open_writer(key) as writer:
                finished = await self.executor.execute(query, self._limit_object(writer, entry))
                size = await asyncio.to_thread(writer.commit)
        except StorageError as error:
            _log.warning("scratch_unavailable", error=repr(error))
            raise Unavailable("the result cannot be written to scratch; try again") from error
        written = {"uri": f"{_SCHEME}{key}", "bytes": size}
        return _render_json(entry, finished, rows=None, written=written)

    def _limit_object(self, writer: ObjectWriter, entry: AuditEntry) -> ReceivePiece:
        max_bytes = self.cfg.task_query_result_bytes

        async def write(piece: bytes) -> None:
            if entry.byte_count > max_bytes:
                raise QueryTooLarge.of(f"returned more than {max_bytes / 2**20:g} MiB")
            await asyncio.to_thread(_write, writer, piece)

        return write


def _make_scratch_key(capability: TaskCapability, entry: AuditEntry) -> str:
    prefix = capability.scratch_prefix
    if prefix is None:
        raise Forbidden(
            "the result is too large for an answer, and the token has no scratch prefix; select less"
        )
    return f"{prefix.removeprefix(_SCHEME)}query-{entry.query_id}.parquet"


def _write(writer: ObjectWriter, piece: bytes) -> None:
    with writer.errors():
        writer.stream.write(piece)


def _render_json(
    entry: AuditEntry,
    finished: FinishedQuery,
    *,
    rows: bytes | None,
    written: dict[str, Any] | None = None,
) -> Response:
    reply = {
        "query_id": entry.query_id,
        "rows": None if rows is None else orjson.Fragment(b"[" + rows + b"]"),
        "object": written,
        **finished.describe(),
    }
    return Response(orjson.dumps(reply), media_type="application/json")


def make_router(queries: TaskQueries) -> APIRouter:
    """Make the route that tasks call."""
    router = APIRouter(tags=["task"])

    @router.post(TASK_QUERY_PATH, response_model=TaskQueryReply)
    async def query(body: TaskQueryRequest, request: Request) -> Response:
        """Run one SELECT over the inputs of a running attempt, as its token pins them."""
        answering = queries.answer(body, request.headers.get(TOKEN_HEADER))
        try:
            return await run_while_connected(answering, request.receive)
        except ClientDisconnected:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    return router
