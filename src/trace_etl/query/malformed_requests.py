"""Record queries whose request is refused before it reaches its handler."""

from contextlib import suppress
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trace_etl.http.problems import (
    answer_http_exception,
    explain_malformed,
    explain_unread_body,
    problem_response,
)
from trace_etl.http.user_tokens import current_user
from trace_etl.model.errors import TraceError
from trace_etl.query.audit import AuditEntry, AuditLog
from trace_etl.query.tasks.task_queries import TASK_QUERY_PATH, TOKEN_HEADER, TaskQueries

USER_QUERY_PATH = "/v1/query"


@dataclass(frozen=True)
class MalformedRequests:
    """Answers requests with wrong fields or unreadable bodies. A known caller gets a row in the record."""

    audit: AuditLog
    tasks: TaskQueries | None

    def install(self, app: FastAPI) -> None:
        app.add_exception_handler(RequestValidationError, self._answer_wrong_fields)
        app.add_exception_handler(HTTPException, self._answer_unread_body)

    async def _answer_wrong_fields(self, request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await self._refuse(request, explain_malformed(error))

    async def _answer_unread_body(self, request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        refusal = explain_unread_body(error)
        if refusal is None:
            return await answer_http_exception(request, error)
        return await self._refuse(request, refusal)

    async def _refuse(self, request: Request, refusal: TraceError) -> JSONResponse:
        try:
            entry = await self._find_caller(request)
        except TraceError as unknown_caller:
            return problem_response(unknown_caller)
        if entry is not None:
            with suppress(type(refusal)):
                async with self.audit.record(entry):
                    raise refusal
        return problem_response(refusal)

    async def _find_caller(self, request: Request) -> AuditEntry | None:
        """Return the caller of a query; None for other requests. Raises Unauthenticated."""
        path = request.url.path
        if path == USER_QUERY_PATH:
            user = await current_user(request)
            return AuditEntry(user.org_id, user.name)
        if path == TASK_QUERY_PATH and self.tasks is not None:
            token = await self.tasks.tokens.verify(request.headers.get(TOKEN_HEADER))
            return AuditEntry(token.org_id, task_id=token.task_id, attempt=token.attempt)
        return None
