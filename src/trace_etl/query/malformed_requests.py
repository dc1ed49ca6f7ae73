"""Record queries whose request is refused before it reaches its handler."""

from contextlib import suppress
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from trace_etl.http.problems import explain_malformed, problem_response
from trace_etl.http.user_tokens import current_user
from trace_etl.model.errors import Invalid, TraceError
from trace_etl.query.audit import AuditEntry, AuditLog
from trace_etl.query.tasks.task_queries import TASK_QUERY_PATH, TOKEN_HEADER, TaskQueries

USER_QUERY_PATH = "/v1/query"


@dataclass(frozen=True)
class MalformedRequests:
    """Answers requests with wrong fields. A known caller gets a row in the record of queries."""

    audit: AuditLog
    tasks: TaskQueries | None

    def install(self, app: FastAPI) -> None:
        app.add_exception_handler(RequestValidationError, self._answer)

    async def _answer(self, request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        refusal = explain_malformed(error)
        try:
            entry = await self._find_caller(request)
        except TraceError as unknown_caller:
            return problem_response(unknown_caller)
        if entry is not None:
            with suppress(Invalid):
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
