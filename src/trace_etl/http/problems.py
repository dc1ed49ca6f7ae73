"""RFC 9457: one table from error to HTTP status, one shape for every refusal."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from trace_etl.model.errors import (
    Conflict,
    Fault,
    Forbidden,
    Invalid,
    LeaseLost,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    TraceError,
    Unauthenticated,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"
# Subclasses answer as their nearest ancestor here; what has none is our fault, and says nothing.
STATUS: Mapping[type[TraceError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    Conflict: 409,
    TooLarge: 413,
    Invalid: 422,
    Unavailable: 503,
}
_TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    422: "Invalid input",
    500: "Internal error",
    503: "Unavailable",
}
_HEADERS: Mapping[int, dict[str, str]] = {
    401: {"WWW-Authenticate": 'Bearer realm="trace"'},
    503: {"Retry-After": "1"},
}
_PLAIN_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def status_of(error: TraceError) -> int:
    """The HTTP status of an error; 500 for one that callers were never meant to see."""
    return next((STATUS[c] for c in type(error).__mro__ if c in STATUS), 500)


def problem(error: TraceError) -> tuple[int, dict[str, Any]]:
    """An error as status and problem document."""
    status = status_of(error)
    if status == 500:
        return status, _document(status, "internal", "the service failed; its log says why")
    document = _document(status, error.code, error.detail)
    if isinstance(error, LeaseLost):
        document["reason"] = error.reason
    if isinstance(error, Invalid):
        document["errors"] = [_fault(fault) for fault in error.faults]
    return status, document


def problem_response(error: TraceError) -> JSONResponse:
    """An error as the answer to a request."""
    return _response(*problem(error))


def install_problem_handlers(app: FastAPI) -> None:
    """Make every failure of the app a problem document: ours, FastAPI's, Starlette's, surprises."""
    app.add_exception_handler(TraceError, _on_trace_error)
    app.add_exception_handler(RequestValidationError, _on_malformed_request)
    app.add_exception_handler(HTTPException, _on_plain_refusal)
    app.add_exception_handler(Exception, _on_surprise)


def from_validation(errors: Sequence[Mapping[str, Any]]) -> Invalid:
    """Pydantic's faults as ours, each naming its field."""
    return Invalid([Fault(_field(e["loc"]), _message(e)) for e in errors])


def _document(status: int, code: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"urn:trace:problem:{code}",
        "title": _TITLES.get(status, "Refused"),
        "status": status,
        "detail": detail,
        "code": code,
    }


def _response(
    status: int, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        document,
        status,
        headers={**_HEADERS.get(status, {}), **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "field": fault.field,
        "line": fault.line,
        "column": fault.column,
        "message": fault.message,
    }


def _field(loc: Sequence[int | str]) -> str:
    # FastAPI puts the place (body, query, path) first; a fault of the whole keeps it.
    path = loc[1:] if loc and loc[0] in ("body", "query", "path", "header") else loc
    return ".".join(str(part) for part in path) or "body"


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "is required and missing"
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] == "json_invalid":
        return f"is not JSON: {error.get('ctx', {}).get('error', 'malformed')}"
    return str(error["msg"]).removeprefix("Value error, ")


async def _on_trace_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TraceError)
    return problem_response(error)


async def _on_malformed_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(_malformed(error))


def _malformed(error: RequestValidationError) -> Invalid:
    faults = error.errors()
    broken = [e for e in faults if e["type"] == "json_invalid"]
    # The position inside broken JSON is no field.
    return from_validation([{**e, "loc": ("body",)} for e in broken] or faults)


async def _on_plain_refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = error.status_code
    detail = str(error.detail)
    if status == 400:  # what FastAPI says of a body that is not even text, or too deep to read
        return problem_response(Invalid([Fault("body", "is not JSON: it cannot be read")]))
    if status in (404, 405):
        detail = f"there is no {request.method} {request.url.path} here"
    code = _PLAIN_CODES.get(status, "bad_request" if status < 500 else "internal")
    return _response(status, _document(status, code, detail), error.headers)


async def _on_surprise(_: Request, __: Exception) -> JSONResponse:
    # Starlette raises it again afterwards, so that it reaches the log.
    return _response(*problem(TraceError()))
