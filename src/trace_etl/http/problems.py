"""Map errors to HTTP statuses and RFC 9457 problem documents."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from trace_etl.http.client_connection import CLIENT_CLOSED_REQUEST
from trace_etl.model.errors import (
    Conflict,
    CursorExpired,
    Fault,
    Forbidden,
    Invalid,
    LeaseLost,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    TooLarge,
    TooManyRequests,
    TraceError,
    Unauthenticated,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"
# A subclass uses the status of its nearest ancestor. Other errors are internal: 500 without details.
STATUS: Mapping[type[TraceError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    Conflict: 409,
    CursorExpired: 410,
    PreconditionFailed: 412,
    TooLarge: 413,
    RangeNotSatisfiable: 416,
    Invalid: 422,
    TooManyRequests: 429,
    Unavailable: 503,
}
_TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    412: "Precondition failed",
    413: "Too large",
    416: "Range not satisfiable",
    422: "Invalid input",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}
_HEADERS: Mapping[int, dict[str, str]] = {
    401: {"WWW-Authenticate": 'Bearer realm="trace"'},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}
_MESSAGES = {
    "uuid_parsing": "must be a UUID, such as 123e4567-e89b-12d3-a456-426614174000",
    "uuid_type": "must be a UUID, as text",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "string_type": "must be a text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
# Pydantic names the value in its own way: "Input should be …", "String should have …".
_LIBRARY_SUBJECT = re.compile(r"^[A-Z][a-z]+ should")
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def status_of(error: TraceError) -> int:
    """Return the HTTP status of an error; 500 for internal errors."""
    return next((STATUS[c] for c in type(error).__mro__ if c in STATUS), 500)


def problem(error: TraceError) -> tuple[int, dict[str, Any]]:
    """Return the status and the problem document of an error."""
    status = status_of(error)
    if status == 500:
        return status, _make_document(
            status, "internal", "internal error; see the log of the service"
        )
    document = _make_document(status, error.code, error.detail)
    if isinstance(error, LeaseLost):
        document["reason"] = error.reason
    if isinstance(error, CursorExpired):
        document |= {"cursor": error.cursor, "dataset_version": error.dataset_version}
    if isinstance(error, Invalid):
        document["errors"] = [_make_fault(fault) for fault in error.faults]
    return status, document


def problem_response(error: TraceError) -> JSONResponse:
    """Return the HTTP response for an error."""
    return _make_response(*problem(error))


def install_problem_handlers(app: FastAPI) -> None:
    """Turn every exception of the app into a problem document, including FastAPI's and Starlette's."""
    app.add_exception_handler(TraceError, _handle_trace_error)
    app.add_exception_handler(RequestValidationError, _handle_malformed_request)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    app.add_exception_handler(Exception, _handle_unexpected_error)


def from_validation(errors: Sequence[Mapping[str, Any]]) -> Invalid:
    """Convert Pydantic's errors to `Invalid`, with the field of each fault."""
    return Invalid([Fault(_name_field(e["loc"]), _make_message(e)) for e in errors])


def _make_document(status: int, code: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"urn:trace:problem:{code}",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": code,
    }


def _make_response(
    status: int, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        document,
        status,
        headers={**_HEADERS.get(status, {}), **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def _make_fault(fault: Fault) -> dict[str, Any]:
    return {
        "field": fault.field,
        "line": fault.line,
        "column": fault.column,
        "message": fault.message,
    }


def _name_field(loc: Sequence[int | str]) -> str:
    # FastAPI puts the place (body, query, path) first. Drop it, unless the fault concerns the whole body.
    path = loc[1:] if loc and loc[0] in ("body", "query", "path", "header") else loc
    return ".".join(str(part) for part in path) or "body"


def _make_message(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "is required and missing"
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] == "json_invalid":
        return f"is not JSON: {error.get('ctx', {}).get('error', 'malformed')}"
    if error["type"] in _MESSAGES:
        return _MESSAGES[error["type"]]
    return _LIBRARY_SUBJECT.sub("must", str(error["msg"]).removeprefix("Value error, "))


async def _handle_trace_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TraceError)
    return problem_response(error)


async def _handle_malformed_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(explain_malformed(error))


def explain_malformed(error: RequestValidationError) -> Invalid:
    """Return the faults of a request that has wrong fields."""
    faults = error.errors()
    broken = [e for e in faults if e["type"] == "json_invalid"]
    # Replace the location: FastAPI reports an offset inside the broken JSON instead of a field.
    return from_validation([{**e, "loc": ("body",)} for e in broken] or faults)


def explain_unread_body(error: HTTPException) -> TraceError | None:
    """Return why a body was refused before its fields were read; None for any other error."""
    if error.status_code == 400:  # FastAPI: the body is not text, or is nested too deeply
        return Invalid([Fault("body", "is not valid JSON; correct it")])
    return TooLarge(str(error.detail)) if error.status_code == 413 else None


async def answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer an error of Starlette or FastAPI with a problem document."""
    assert isinstance(error, HTTPException)
    if (refusal := explain_unread_body(error)) is not None:
        return problem_response(refusal)
    status = error.status_code
    detail = str(error.detail)
    if status in (404, 405):
        detail = f"unknown endpoint {request.method} {request.url.path}"
    code = _HTTP_CODES.get(status, "bad_request" if status < 500 else "internal")
    headers = error.headers
    if status == 405:
        headers = {"Allow": ", ".join(sorted(_find_methods(request)))}
    return _make_response(status, _make_document(status, code, detail), headers)


def _find_methods(request: Request) -> set[str]:
    """Return the methods of all routes of a path. Starlette knows only the first route's."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


async def _handle_disconnect(_: Request, __: Exception) -> Response:
    # The client closed its connection in the middle of a body. Only the log and the metrics see this answer.
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _handle_unexpected_error(_: Request, __: Exception) -> JSONResponse:
    # Starlette raises the error again after this response, so that it is logged. The server then closes the
    # connection, on which the client would otherwise send its next request.
    return _make_response(*problem(TraceError()), {"Connection": "close"})
