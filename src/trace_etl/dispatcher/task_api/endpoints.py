"""The endpoints of the internal listener, as data for routing and for the reference pages."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from trace_etl.api.task import buffers, events, retired_tables
from trace_etl.api.task import lifecycle as wire
from trace_etl.model.errors import (
    CompletionMismatch,
    Conflict,
    LeaseLost,
    OutputNotReady,
    PartitionOverlap,
)


@dataclass(frozen=True)
class Endpoint:
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
    Endpoint(
        "health",
        "GET",
        "/healthz",
        "Report that the process is alive, and its version.",
        "none",
        (wire.Health,),
    ),
    Endpoint(
        "claim",
        "POST",
        "/internal/task-claim",
        "Claim a task: one atomic Queued → Running.",
        "worker",
        (wire.Claimed, wire.NotClaimed),
        wire.Claim,
        refusals=_WORKER,
    ),
    Endpoint(
        "claim_many",
        "POST",
        "/internal/task-claim-many",
        "Extension: claim up to N ready tasks of a runtime in one call.",
        "worker",
        (wire.ClaimedMany,),
        wire.ClaimMany,
        refusals=_WORKER,
    ),
    Endpoint(
        "fetch",
        "GET",
        "/internal/task-fetch",
        "Read a task. Status Canceled tells its worker to stop and report it.",
        "worker",
        (wire.Fetched,),
        query=("task_id",),
        refusals=(401, 404, 422, 503),
    ),
    Endpoint(
        "tables_to_drop",
        "POST",
        "/internal/tables-to-drop",
        "Extension: list tables of Postgres data that may be dropped.",
        "worker",
        (retired_tables.TablesToDrop,),
        retired_tables.TablesHeld,
        refusals=_WORKER,
    ),
    Endpoint(
        "jwks",
        "GET",
        "/internal/jwks/task",
        "Get the public keys that verify capability tokens.",
        "worker",
        (wire.Jwks,),
        refusals=(401,),
        cached=True,
    ),
    Endpoint(
        "heartbeat",
        "POST",
        "/v1/task/heartbeat",
        "Extend the lease. On 409 the worker must stop at once.",
        "task",
        (wire.HeartbeatAccepted,),
        wire.Heartbeat,
        refusals=_FENCED,
        conflicts=(LeaseLost,),
        aliases=("/internal/heartbeat",),
    ),
    Endpoint(
        "complete",
        "POST",
        "/v1/task/complete",
        "End the attempt and commit its outputs, events and publications.",
        "task",
        (wire.CompleteAccepted,),
        wire.Complete,
        refusals=_FENCED,
        conflicts=(LeaseLost, CompletionMismatch, OutputNotReady, PartitionOverlap),
        aliases=("/internal/task-complete",),
    ),
    Endpoint(
        "complete_many",
        "POST",
        "/internal/task-complete-many",
        "Extension: end several attempts in one call, each with its own capability token.",
        "worker",
        (wire.CompletedMany,),
        wire.CompleteMany,
        refusals=_WORKER,
    ),
    Endpoint(
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
    Endpoint(
        "buffer_publish",
        "POST",
        "/v1/task/buffer-publish",
        "Publish a batch to a buffered dataset.",
        "task",
        (wire.BufferPublishAccepted,),
        wire.BufferPublish,
        refusals=_FENCED,
        conflicts=(LeaseLost,),
    ),
    Endpoint(
        "buffer_fetch",
        "GET",
        "/internal/buffer-fetch",
        "Extension, for the sink: read a published batch and the columns its rows must have.",
        "worker",
        (buffers.BufferBatch,),
        query=("publish_id",),
        refusals=(401, 404, 422, 503),
    ),
    Endpoint(
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
