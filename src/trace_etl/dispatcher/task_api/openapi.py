"""The internal listener's OpenAPI 3.1 document, and the reference pages made from it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from trace_etl import __version__
from trace_etl.dispatcher.task_api.endpoints import CALLS, Call
from trace_etl.dispatcher.user_api.roles import ROLES, SIGNED
from trace_etl.http.problems import MEDIA_TYPE, STATUS
from trace_etl.model.errors import TraceError

PATH = "/openapi.json"
Json = dict[str, Any]
Refs = Mapping[Any, Json]
_REF = "#/components/schemas/"
_HEADERS = {"worker": "X-Trace-Worker-Token", "task": "X-Trace-Task-Capability"}
_AUTH = {
    "worker": "Worker identity. Two tokens may be valid at once, while they are rotated.",
    "task": "Capability token of one attempt: an ES256 JWT, handed out by the claim.",
}
_MEANING = {
    304: "Not modified: the caller holds this very answer already.",
    401: "No token, or one that does not verify.",
    403: "A good token for another task or attempt, or for a scope it does not have.",
    404: "There is no such task.",
    409: "The fence, or a conflict that `code` names: nothing was changed.",
    413: "The body is too large.",
    422: "Malformed; `errors` names each field.",
    503: "Postgres state does not answer; the same call may work later.",
}
_REASONS = ["stale_attempt", "stale_lease", "not_running"]
_INTRODUCTION = """\
Claim, heartbeat, complete, events, buffer publish. TLS only, on an address apart from the user API.
Task-scoped calls carry `X-Trace-Task-Capability` and the fence `{task_id, attempt, lease_token}`.
Repeating an accepted call of the same attempt answers 200 and changes nothing. Unknown request
fields are refused. Errors are RFC 9457 problem documents with a stable `code`.

A completion that is refused for what was built leaves the attempt running: say `Failed`. It is
worth another attempt (`retryable`) after `output_not_ready`, and after `partition_overlap` where
the task's scope has a cursor: the next attempt is told anew where to begin."""


def document(calls: tuple[Call, ...] = CALLS) -> Json:
    """The OpenAPI document of these calls."""
    refs, schemas = _schemas(calls)
    paths: dict[str, Json] = {}
    for call in calls:
        for path in (call.path, *call.aliases):
            paths.setdefault(path, {})[call.method.lower()] = _operation(call, path, refs)
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
            "responses": _refusals(calls),
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
        "field": {"type": "string", "description": "Where: `events.0.cursor`, or `body`."},
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
        "code": {"type": "string", "description": "Stable; what programs decide on."},
        "reason": {"enum": _REASONS, "description": "With `lease_lost`: what did not hold."},
        "errors": {"type": "array", "items": {"$ref": f"{_REF}Fault"}},
    },
}


def _schemas(calls: tuple[Call, ...]) -> tuple[Refs, Json]:
    said: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (call.request, "validation") for call in calls if call.request
    ]
    heard: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (reply, "serialization") for call in calls for reply in call.replies
    ]
    found, definitions = models_json_schema(said + heard, ref_template=_REF + "{model}")
    return {model: ref for (model, _), ref in found.items()}, definitions["$defs"]


def _operation(call: Call, path: str, refs: Refs) -> Json:
    alias = path != call.path
    made: Json = {
        "operationId": f"{call.name}_alias" if alias else call.name,
        "summary": call.summary,
        "responses": _responses(call, refs),
    }
    if alias:
        made |= {"deprecated": True, "description": f"Alias of `{call.path}`: the same handler."}
    if call.auth != "none":
        made["security"] = [{call.auth: []}]
    if call.query:
        made["parameters"] = [_parameter(name) for name in call.query]
    if call.request:
        made["requestBody"] = {"required": True, "content": _json(refs[call.request])}
    return made


def _parameter(name: str) -> Json:
    schema = {"type": "string", "format": "uuid"}
    return {"name": name, "in": "query", "required": True, "schema": schema}


def _responses(call: Call, refs: Refs) -> Json:
    replies = [refs[reply] for reply in call.replies]
    schema = replies[0] if len(replies) == 1 else {"oneOf": replies}
    ok: Json = {"description": "Accepted.", "content": _json(schema)}
    made: Json = {"200": ok}
    if call.cached:
        text = {"schema": {"type": "string"}}
        ok["headers"] = {"ETag": text, "Cache-Control": text}
        made["304"] = {"description": _MEANING[304]}
    for status in call.refusals:
        made[str(status)] = {"$ref": f"#/components/responses/{_named(codes(call, status))}"}
    return made


def _refusals(calls: tuple[Call, ...]) -> Json:
    """Every set of codes that some call refuses with, described once."""
    return {
        _named(codes(call, status)): _refusal(status, codes(call, status))
        for call in calls
        for status in call.refusals
    }


def _named(known: list[str]) -> str:
    return "_or_".join(known)


def codes(call: Call, status: int) -> list[str]:
    """The stable codes that a call may refuse with, by status."""
    kinds: list[type[TraceError]] = [kind for kind, number in STATUS.items() if number == status]
    return [kind.code for kind in (call.conflicts if status == 409 else kinds)]


def _refusal(status: int, known: list[str]) -> Json:
    narrowed = {"properties": {"status": {"const": status}, "code": {"enum": known}}}
    schema = {"allOf": [{"$ref": f"{_REF}Problem"}, narrowed]}
    return {"description": _MEANING[status], "content": {MEDIA_TYPE: {"schema": schema}}}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


# --- the user API -----------------------------------------------------------------------------

_USER_REFUSALS = {"get": (401, 403, 404, 422, 503), "post": (401, 403, 404, 409, 413, 422, 503)}
_USER_MEANING = {403: "The token's role does not allow it.", 404: "There is no such thing."}
_BEARER = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}


def describe(app: FastAPI) -> None:
    """Let an app's own document tell of bearer tokens and refusals too."""
    framework = app.openapi

    def described() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _described(framework())
        return app.openapi_schema

    app.openapi = described


def _described(made: Json) -> Json:
    schemas: Json = made["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= {"Problem": _PROBLEM, "Fault": _FAULT}
    made["components"]["securitySchemes"] = {"user": _BEARER}
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            needed = ROLES.get(f"{method.upper()} {path}")
            if needed is not None:
                operation["security"] = [] if needed == SIGNED else [{"user": []}]
                operation["x-role"] = needed
                operation["responses"] |= {
                    str(status): _user_refusal(status) for status in _USER_REFUSALS[method]
                }
    return made


def _user_refusal(status: int) -> Json:
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}}
    return {"description": _USER_MEANING.get(status, _MEANING[status]), "content": content}


# --- the reference pages ----------------------------------------------------------------------


def pages(calls: tuple[Call, ...] = CALLS) -> dict[str, str]:
    """File names and contents of `docs/reference`."""
    made = orjson.dumps(document(calls), option=orjson.OPT_INDENT_2).decode()
    return {"task-api.json": f"{made}\n", "task-api.md": _page(calls)}


def _page(calls: tuple[Call, ...]) -> str:
    rows = "\n".join(_row(call) for call in calls)
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


def _row(call: Call) -> str:
    aliases = ", ".join(f"`{path}`" for path in call.aliases)
    refusals = ", ".join(f"{n} {' '.join(f'`{c}`' for c in codes(call, n))}" for n in call.refusals)
    return (
        f"| `{call.method} {call.path}` | {aliases} | {call.auth} | {call.summary} | {refusals} |"
    )


def main() -> None:
    """Write the reference pages into the directory given."""
    for name, text in pages().items():
        Path(sys.argv[1], name).write_text(text)


if __name__ == "__main__":
    main()
