"""The OpenAPI 3.1 document of the internal listener, and the reference pages made from it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from trace_etl import __version__
from trace_etl.dispatcher.task_api.endpoints import ENDPOINTS, RpcEndpoint
from trace_etl.dispatcher.user_api.roles import ROLES, SIGNED
from trace_etl.http.problems import MEDIA_TYPE, STATUS
from trace_etl.model.errors import TraceError

PATH = "/openapi.json"
Json = dict[str, Any]
Refs = Mapping[Any, Json]
_REF = "#/components/schemas/"
_HEADERS = {
    "worker": "X-Trace-Worker-Token",
    "task": "X-Trace-Task-Capability",
    "sink": "Authorization",
}
_AUTH = {
    "worker": "Worker token. During a rotation the old and the new one are valid.",
    "task": "Capability token of one attempt: an ES256 JWT from the claim's answer.",
    "sink": "`Bearer` and the token of the sink: an ES256 JWT with the audience `trace.service`.",
}
_MEANING = {
    304: "Not modified: the ETag matches.",
    401: "The token is missing or not valid.",
    403: "The token is for another task or attempt, or does not grant this scope.",
    404: "The task does not exist.",
    409: "A stale fence, or the conflict that `code` names. Nothing was changed.",
    413: "The body is too large.",
    422: "The request is malformed; `errors` names each field.",
    503: "Postgres state is unavailable; retry the call later.",
}
_REASONS = ["stale_attempt", "stale_lease", "not_running"]
_INTRODUCTION = """\
Claim, heartbeat, complete, events, buffer publish. TLS only, on another address than the user API.
Task-scoped calls carry `X-Trace-Task-Capability` and the fence `{task_id, attempt, lease_token}`.
Repeating an accepted call of the same attempt answers 200 and changes nothing. Unknown request
fields are refused. Errors are RFC 9457 problem documents with a stable `code`.

When a completion is refused because of its outputs, the attempt keeps running: report `Failed`.
Report it as `retryable` after `output_not_ready`, and after `partition_overlap` if the task's scope
has a cursor: the next attempt gets a new start position."""


def document(calls: tuple[RpcEndpoint, ...] = ENDPOINTS) -> Json:
    """Return the OpenAPI document of these endpoints."""
    refs, schemas = _collect_schemas(calls)
    paths: dict[str, Json] = {}
    for call in calls:
        for path in (call.path, *call.aliases):
            paths.setdefault(path, {})[call.method.lower()] = _describe_operation(call, path, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trace task lifecycle",
            "version": __version__,
            "description": _INTRODUCTION,
        },
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM, "Fault": _FAULT},
            "responses": _describe_refusals(calls),
            "securitySchemes": {
                name: {"type": "apiKey", "in": "header", "name": header, "description": _AUTH[name]}
                for name, header in _HEADERS.items()
            },
        },
    }


_FAULT: Json = {
    "type": "object",
    "required": ["field", "message"],
    "properties": {
        "field": {
            "type": "string",
            "description": "Path of the field, for example `events.0.cursor`, or `body`.",
        },
        "message": {"type": "string"},
        "line": {"type": ["integer", "null"]},
        "column": {"type": ["integer", "null"]},
    },
}
_PROBLEM: Json = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "description": "`urn:trace:problem:` and the code."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stable code for programs."},
        "reason": {
            "enum": _REASONS,
            "description": "With `lease_lost`: which part of the fence is stale.",
        },
        "errors": {"type": "array", "items": {"$ref": f"{_REF}Fault"}},
    },
}


def _collect_schemas(calls: tuple[RpcEndpoint, ...]) -> tuple[Refs, Json]:
    requests: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (call.request, "validation") for call in calls if call.request
    ]
    replies: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (reply, "serialization") for call in calls for reply in call.replies
    ]
    refs, definitions = models_json_schema(requests + replies, ref_template=_REF + "{model}")
    return {model: ref for (model, _), ref in refs.items()}, definitions["$defs"]


def _describe_operation(call: RpcEndpoint, path: str, refs: Refs) -> Json:
    alias = path != call.path
    operation: Json = {
        "operationId": f"{call.name}_alias" if alias else call.name,
        "summary": call.summary,
        "responses": _describe_responses(call, refs),
    }
    if alias:
        operation |= {
            "deprecated": True,
            "description": f"Alias of `{call.path}`: the same handler.",
        }
    if call.auth != "none":
        operation["security"] = [{call.auth: []}]
    if call.query:
        operation["parameters"] = [_describe_parameter(name) for name in call.query]
    if call.request:
        operation["requestBody"] = {
            "required": True,
            "content": _make_json_content(refs[call.request]),
        }
    return operation


def _describe_parameter(name: str) -> Json:
    schema = {"type": "string", "format": "uuid"}
    return {"name": name, "in": "query", "required": True, "schema": schema}


def _describe_responses(call: RpcEndpoint, refs: Refs) -> Json:
    replies = [refs[reply] for reply in call.replies]
    schema = replies[0] if len(replies) == 1 else {"oneOf": replies}
    ok: Json = {"description": "Accepted.", "content": _make_json_content(schema)}
    responses: Json = {"200": ok}
    if call.cached:
        text = {"schema": {"type": "string"}}
        ok["headers"] = {"ETag": text, "Cache-Control": text}
        responses["304"] = {"description": _MEANING[304]}
    for status in call.refusals:
        responses[str(status)] = {
            "$ref": f"#/components/responses/{_name_refusal(codes(call, status))}"
        }
    return responses


def _describe_refusals(calls: tuple[RpcEndpoint, ...]) -> Json:
    """Describe every set of refusal codes once."""
    return {
        _name_refusal(codes(call, status)): _describe_refusal(status, codes(call, status))
        for call in calls
        for status in call.refusals
    }


def _name_refusal(codes: list[str]) -> str:
    return "_or_".join(codes)


def codes(call: RpcEndpoint, status: int) -> list[str]:
    """Return the stable codes of an endpoint's refusals with this status."""
    kinds: list[type[TraceError]] = [kind for kind, number in STATUS.items() if number == status]
    return [kind.code for kind in (call.conflicts if status == 409 else kinds)]


def _describe_refusal(status: int, codes: list[str]) -> Json:
    constraints = {"properties": {"status": {"const": status}, "code": {"enum": codes}}}
    schema = {"allOf": [{"$ref": f"{_REF}Problem"}, constraints]}
    return {"description": _MEANING[status], "content": {MEDIA_TYPE: {"schema": schema}}}


def _make_json_content(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


# --- the user API -----------------------------------------------------------------------------

_WRITE_REFUSALS = (401, 403, 404, 409, 413, 422, 429, 503)
_USER_REFUSALS = {
    "get": (401, 403, 404, 422, 429, 503),
    "post": _WRITE_REFUSALS,
    "put": _WRITE_REFUSALS,
}
_USER_MEANING = {
    403: "The token's role does not allow this call.",
    404: "The resource does not exist.",
    429: "The caller has as much work in progress as one user may; `detail` names the limit.",
}
_BEARER = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}


def describe(app: FastAPI) -> None:
    """Add bearer tokens and refusals to an app's OpenAPI document."""
    framework = app.openapi

    def openapi_document() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _add_security_and_refusals(framework())
        return app.openapi_schema

    app.openapi = openapi_document


def _add_security_and_refusals(spec: Json) -> Json:
    schemas: Json = spec["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= {"Problem": _PROBLEM, "Fault": _FAULT}
    spec["components"]["securitySchemes"] = {"user": _BEARER}
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            needed = ROLES.get(f"{method.upper()} {path}")
            if needed is not None:
                operation["security"] = [] if needed == SIGNED else [{"user": []}]
                operation["x-role"] = needed
                operation["responses"] |= {
                    str(status): _describe_user_refusal(status) for status in _USER_REFUSALS[method]
                }
    return spec


def _describe_user_refusal(status: int) -> Json:
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}}
    return {"description": {**_MEANING, **_USER_MEANING}[status], "content": content}


# --- the reference pages ----------------------------------------------------------------------


def pages(calls: tuple[RpcEndpoint, ...] = ENDPOINTS) -> dict[str, str]:
    """Return file names and contents for `docs/reference`."""
    text = orjson.dumps(document(calls), option=orjson.OPT_INDENT_2).decode()
    return {"task-api.json": f"{text}\n", "task-api.md": _render_page(calls)}


def _render_page(calls: tuple[RpcEndpoint, ...]) -> str:
    rows = "\n".join(_make_row(call) for call in calls)
    headers = "\n".join(f"- `{_HEADERS[name]}`: {text}" for name, text in _AUTH.items())
    return f"""# Task lifecycle API

Generated by `python -m trace_etl.dispatcher.task_api.openapi docs/reference`; the Dispatcher serves the same
document at `GET {PATH}` of its internal address. Bodies: [task-api.json](task-api.json).

{_INTRODUCTION}

{headers}

| call | aliases | token | what it does | refusals |
| --- | --- | --- | --- | --- |
{rows}

A 409 with `lease_lost` has a `reason`: {", ".join(f"`{reason}`" for reason in _REASONS)}.
"""


def _make_row(call: RpcEndpoint) -> str:
    aliases = ", ".join(f"`{path}`" for path in call.aliases)
    refusals = ", ".join(f"{n} {' '.join(f'`{c}`' for c in codes(call, n))}" for n in call.refusals)
    return (
        f"| `{call.method} {call.path}` | {aliases} | {call.auth} | {call.summary} | {refusals} |"
    )


def main() -> None:
    """Write the reference pages into the given directory."""
    for name, text in pages().items():
        Path(sys.argv[1], name).write_text(text)


if __name__ == "__main__":
    main()
