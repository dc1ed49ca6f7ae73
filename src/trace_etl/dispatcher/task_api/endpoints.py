"""The calls of the internal listener, as data: what serves them and documents them reads this."""

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
class Call:
    """One endpoint: its name, where it is, who may call it, and everything it may answer."""

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

CALLS = (
    Call(
        "health",
        "GET",
        "/healthz",
        "Alive, and this version.",
        "none",
        (wire.Health,),
    ),
    Call(
        "claim",
        "POST",
        "/internal/task-claim",
        "Claim a task: one atomic Queued → Running.",
        "worker",
        (wire.Claimed, wire.NotClaimed),
        wire.Claim,
        refusals=_WORKER,
    ),
    Call(
        "claim_many",
        "POST",
        "/internal/task-claim-many",
        "Extension: claim up to N ready tasks of a runtime in one call.",
        "worker",
        (wire.ClaimedMany,),
        wire.ClaimMany,
        refusals=_WORKER,
    ),
    Call(
        "fetch",
        "GET",
        "/internal/task-fetch",
        "Read a task; Canceled tells its worker to stop and to report it.",
        "worker",
        (wire.Fetched,),
        query=("task_id",),
        refusals=(401, 404, 422, 503),
    ),
    Call(
        "tables_to_drop",
        "POST",
        "/internal/tables-to-drop",
        "Extension: which tables of Postgres data nobody reads any more.",
        "worker",
        (retired_tables.TablesToDrop,),
        retired_tables.TablesHeld,
        refusals=_WORKER,
    ),
    Call(
        "jwks",
        "GET",
        "/internal/jwks/task",
        "The public keys that verify capability tokens.",
        "worker",
        (wire.Jwks,),
        refusals=(401,),
        cached=True,
    ),
    Call(
        "heartbeat",
        "POST",
        "/v1/task/heartbeat",
        "Extend the lease; 409 tells the worker to stop at once.",
        "task",
        (wire.HeartbeatAccepted,),
        wire.Heartbeat,
        refusals=_FENCED,
        conflicts=(LeaseLost,),
        aliases=("/internal/heartbeat",),
    ),
    Call(
        "complete",
        "POST",
        "/v1/task/complete",
        "End the attempt; outputs, events and publications commit with it.",
        "task",
        (wire.CompleteAccepted,),
        wire.Complete,
        refusals=_FENCED,
        conflicts=(LeaseLost, CompletionMismatch, OutputNotReady, PartitionOverlap),
        aliases=("/internal/task-complete",),
    ),
    Call(
        "complete_many",
        "POST",
        "/internal/task-complete-many",
        "Extension: end several attempts in one call, each with its own capability token.",
        "worker",
        (wire.CompletedMany,),
        wire.CompleteMany,
        refusals=_WORKER,
    ),
    Call(
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
    Call(
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
    Call(
        "buffer_fetch",
        "GET",
        "/internal/buffer-fetch",
        "Extension: a published batch, and what its rows must look like. For the sink.",
        "worker",
        (buffers.BufferBatch,),
        query=("publish_id",),
        refusals=(401, 404, 422, 503),
    ),
    Call(
        "buffer_complete",
        "POST",
        "/internal/buffer-complete",
        "Extension: a batch was written, and its event goes out; or why it cannot be.",
        "worker",
        (buffers.BufferCompleteAccepted,),
        buffers.BufferComplete,
        refusals=(401, 404, 413, 422, 503),
    ),
)
