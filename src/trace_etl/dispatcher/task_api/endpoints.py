"""The endpoints of the internal listener, as data for routing and for the reference pages."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from trace_etl.api.body import Health
from trace_etl.api.task import buffers, events, retired_tables
from trace_etl.api.task import lifecycle as bodies
from trace_etl.model.errors import (
    CompletionMismatch,
    Conflict,
    LeaseLost,
    OutputNotReady,
    PartitionOverlap,
)


@dataclass(frozen=True)
class RpcEndpoint:
    """One endpoint: name, path, required token, request body, replies and refusals."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    summary: str
    auth: Literal["none", "worker", "task"]
    replies: tuple[type[BaseModel], ...]
    request: type[BaseModel] | None = None
    query: tuple[str, ...] = ()
    """Required query parameters; all are UUIDs."""
    refusals: tuple[int, ...] = ()
    conflicts: tuple[type[Conflict], ...] = ()
    aliases: tuple[str, ...] = ()
    cached: bool = False
    """Answers carry an ETag; `If-None-Match` makes them 304."""


_WORKER = (401, 413, 422, 503)
_FENCED = (401, 403, 404, 409, 413, 422, 503)

ENDPOINTS = (
    RpcEndpoint(
        "health",
        "GET",
        "/healthz",
        "Report that the process is alive, and its version.",
        "none",
        (Health,),
    ),
    RpcEndpoint(
        "claim",
        "POST",
        "/internal/task-claim",
        "Claim a task: one atomic Queued → Running.",
        "worker",
        (bodies.Claimed, bodies.NotClaimed),
        bodies.Claim,
        refusals=_WORKER,
    ),
    RpcEndpoint(
        "claim_many",
        "POST",
        "/internal/task-claim-many",
        "Extension: claim up to N ready tasks of a runtime in one call.",
        "worker",
        (bodies.ClaimedMany,),
        bodies.ClaimMany,
        refusals=_WORKER,
    ),
    RpcEndpoint(
        "fetch",
        "GET",
        "/internal/task-fetch",
        "Read a task. On status Canceled its worker must stop and report it.",
        "worker",
        (bodies.Fetched,),
        query=("task_id",),
        refusals=(401, 404, 422, 503),
    ),
    RpcEndpoint(
        "tables_to_drop",
        "POST",
        "/internal/tables-to-drop",
        "Extension: list tables of Postgres data that may be dropped.",
        "worker",
        (retired_tables.TablesToDrop,),
        retired_tables.TablesHeld,
        refusals=_WORKER,
    ),
    RpcEndpoint(
        "jwks",
        "GET",
        "/internal/jwks/task",
        "Get the public keys that verify capability tokens.",
        "worker",
        (bodies.Jwks,),
        refusals=(401,),
        cached=True,
    ),
    RpcEndpoint(
        "heartbeat",
        "POST",
        "/v1/task/heartbeat",
        "Extend the lease. On 409 the worker must stop immediately.",
        "task",
        (bodies.HeartbeatAccepted,),
        bodies.Heartbeat,
        refusals=_FENCED,
        conflicts=(LeaseLost,),
        aliases=("/internal/heartbeat",),
    ),
    RpcEndpoint(
        "complete",
        "POST",
        "/v1/task/complete",
        "End the attempt and commit its outputs, events and publications.",
        "task",
        (bodies.CompleteAccepted,),
        bodies.Complete,
        refusals=_FENCED,
        conflicts=(LeaseLost, CompletionMismatch, OutputNotReady, PartitionOverlap),
        aliases=("/internal/task-complete",),
    ),
    RpcEndpoint(
        "complete_many",
        "POST",
        "/internal/task-complete-many",
        "Extension: end several attempts in one call, each with its own capability token.",
        "worker",
        (bodies.CompletedMany,),
        bodies.CompleteMany,
        refusals=_WORKER,
    ),
    RpcEndpoint(
        "events",
        "POST",
        "/v1/task/events",
        "Record upstream events of a running attempt.",
        "task",
        (events.EventsAccepted,),
        events.Events,
        refusals=_FENCED,
        conflicts=(LeaseLost,),
        aliases=("/internal/events",),
    ),
    RpcEndpoint(
        "buffer_publish",
        "POST",
        "/v1/task/buffer-publish",
        "Publish a batch to a buffered dataset.",
        "task",
        (bodies.BufferPublishAccepted,),
        bodies.BufferPublish,
        refusals=_FENCED,
        conflicts=(LeaseLost,),
    ),
    RpcEndpoint(
        "buffer_fetch",
        "GET",
        "/internal/buffer-fetch",
        "Extension, for the sink: read a published batch and the columns its rows must have.",
        "worker",
        (buffers.BufferBatch,),
        query=("publish_id",),
        refusals=(401, 404, 422, 503),
    ),
    RpcEndpoint(
        "buffer_complete",
        "POST",
        "/internal/buffer-complete",
        "Extension, for the sink: confirm that a batch was written, or report why it failed.",
        "worker",
        (buffers.BufferCompleteAccepted,),
        buffers.BufferComplete,
        refusals=(401, 404, 413, 422, 503),
    ),
)
