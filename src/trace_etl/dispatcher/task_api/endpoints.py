"""The endpoints of the internal listener, as data for routing and for the reference pages."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from trace_etl.api.body import Health
from trace_etl.api.task import buffers, credentials, events, retired_tables
from trace_etl.api.task import lifecycle as bodies
from trace_etl.model.errors import (
    BrokenLink,
    CompletionMismatch,
    Conflict,
    LeaseLost,
    OutputNotReady,
    PartitionOverlap,
    RowsChanged,
)


@dataclass(frozen=True)
class RpcEndpoint:
    """One endpoint: name, path, required token, request body, replies and refusals."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    summary: str
    auth: Literal["none", "worker", "task", "sink"]
    replies: tuple[type[BaseModel], ...]
    request: type[BaseModel] | None = None
    query: tuple[str, ...] = ()
    """Required query parameters; all are UUIDs."""
    refusals: tuple[int, ...] = ()
    conflicts: tuple[type[Conflict], ...] = ()
    aliases: tuple[str, ...] = ()
    cached: bool = False
    """Whether answers have an ETag, so that a request with `If-None-Match` can get a 304."""


def _declare_for_worker(
    name: str,
    path: str,
    summary: str,
    replies: tuple[type[BaseModel], ...],
    request: type[BaseModel],
) -> RpcEndpoint:
    refusals = (401, 413, 422, 503)
    return RpcEndpoint(name, "POST", path, summary, "worker", replies, request, refusals=refusals)


def _declare_for_worker_by_id(
    name: str, path: str, summary: str, reply: type[BaseModel], parameter: str
) -> RpcEndpoint:
    refusals = (401, 404, 422, 503)
    return RpcEndpoint(
        name, "GET", path, summary, "worker", (reply,), query=(parameter,), refusals=refusals
    )


def _declare_for_sink(
    name: str, path: str, summary: str, reply: type[BaseModel], request: type[BaseModel]
) -> RpcEndpoint:
    refusals = (401, 403, 413, 422, 503)
    return RpcEndpoint(name, "POST", path, summary, "sink", (reply,), request, refusals=refusals)


def _declare_for_task(
    name: str,
    path: str,
    summary: str,
    reply: type[BaseModel],
    request: type[BaseModel],
    conflicts: tuple[type[Conflict], ...] = (),
    alias: str | None = None,
) -> RpcEndpoint:
    return RpcEndpoint(
        name,
        "POST",
        path,
        summary,
        "task",
        (reply,),
        request,
        refusals=(401, 403, 404, 409, 413, 422, 503),
        conflicts=(LeaseLost, *conflicts),
        aliases=(alias,) if alias else (),
    )


ENDPOINTS = (
    RpcEndpoint(
        "health",
        "GET",
        "/healthz",
        "Report that the process is alive, and its version.",
        "none",
        (Health,),
    ),
    _declare_for_worker(
        "claim",
        "/internal/task-claim",
        "Claim a task: one atomic Queued → Running.",
        (bodies.Claimed, bodies.NotClaimed),
        bodies.Claim,
    ),
    _declare_for_worker(
        "claim_many",
        "/internal/task-claim-many",
        "Extension: claim up to N ready tasks of a runtime in one call.",
        (bodies.ClaimedMany,),
        bodies.ClaimMany,
    ),
    _declare_for_worker_by_id(
        "fetch",
        "/internal/task-fetch",
        "Read a task. If the status is Canceled, the worker must stop and report `Canceled`.",
        bodies.Fetched,
        "task_id",
    ),
    _declare_for_sink(
        "tables_to_drop",
        "/internal/tables-to-drop",
        "Extension, for the sink: list tables of Postgres data that may be dropped.",
        retired_tables.TablesToDrop,
        retired_tables.TablesHeld,
    ),
    RpcEndpoint(
        "jwks",
        "GET",
        "/internal/jwks/task",
        "Get the public keys that verify capability tokens.",
        "none",
        (bodies.Jwks,),
        cached=True,
    ),
    _declare_for_task(
        "heartbeat",
        "/v1/task/heartbeat",
        "Extend the lease. On 409 the worker must stop immediately.",
        bodies.HeartbeatAccepted,
        bodies.Heartbeat,
        alias="/internal/heartbeat",
    ),
    _declare_for_task(
        "complete",
        "/v1/task/complete",
        "End the attempt and commit its outputs, events and publications.",
        bodies.CompleteAccepted,
        bodies.Complete,
        (CompletionMismatch, OutputNotReady, PartitionOverlap, BrokenLink, RowsChanged),
        "/internal/task-complete",
    ),
    _declare_for_worker(
        "complete_many",
        "/internal/task-complete-many",
        "Extension: end several attempts in one call, each with its own capability token.",
        (bodies.CompletedMany,),
        bodies.CompleteMany,
    ),
    _declare_for_task(
        "events",
        "/v1/task/events",
        "Record upstream events of a running attempt.",
        events.EventsAccepted,
        events.Events,
        alias="/internal/events",
    ),
    _declare_for_task(
        "logs",
        "/v1/task/logs",
        "Extension: keep a part of the output of a running attempt.",
        bodies.LogAccepted,
        bodies.LogOutput,
    ),
    _declare_for_task(
        "buffer_publish",
        "/v1/task/buffer-publish",
        "Publish a batch to a buffered dataset.",
        bodies.BufferPublishAccepted,
        bodies.BufferPublish,
    ),
    _declare_for_task(
        "credentials",
        "/v1/task/credentials",
        "Get credentials for the objects that the attempt may read and write.",
        credentials.Credentials,
        credentials.CredentialsRequest,
    ),
    _declare_for_sink(
        "buffer_fetch",
        "/internal/buffer-fetch",
        "Extension, for the sink: read published batches and the columns their rows must have.",
        buffers.BufferBatches,
        buffers.BufferFetch,
    ),
    _declare_for_sink(
        "buffer_complete",
        "/internal/buffer-complete",
        "Extension, for the sink: confirm that batches were written, or report why they failed.",
        buffers.BufferCompleteAccepted,
        buffers.BufferComplete,
    ),
)
