"""The user API: backfills."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, model_validator

from trace_etl.api.body import Block, ListReply, Name, Reply, Request
from trace_etl.model.scope import MAX_BLOCK

BackfillState = Literal["running", "complete", "failed", "canceled"]
ChunkState = Literal["pending", "created", "completed", "failed", "canceled", "skipped"]
Action = Literal["build", "rebuild", "there", "no_input"]


class BackfillRequest(Request):
    dag: Name
    job: Name
    start: Block
    end: Block
    chunk: Annotated[int, Field(ge=1, le=MAX_BLOCK)] | None = None
    """Blocks a task; by default as upstream splits, or as most partitions are."""
    force: bool = False
    """Rebuild what is there, too."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "BackfillRequest":
        if self.end < self.start:
            raise ValueError(f"`end` ({self.end}) must not be before `start` ({self.start})")
        return self


class ChunkPlan(Reply):
    start: int
    end: int
    action: Action
    rows: int | None
    """What it holds if it is there, what it may hold if not; null: nobody can tell."""


class BackfillPreview(Reply):
    dag: str
    job: str
    start: int
    end: int
    fed_by: str
    chunk: int
    build: int
    rebuild: int
    there: int
    no_input: int
    """Ranges for which there is nothing to read upstream."""
    blocks: int
    """To be built or rebuilt."""
    rows: int | None
    """An estimate from the partitions that are there; null: there are none."""
    chunks: list[ChunkPlan]
    """The first thousand of them."""


class BackfillItem(Reply):
    backfill_id: UUID
    dag: str
    job: str
    start: int
    end: int
    chunk: int
    force: bool
    state: BackfillState
    why: str
    made_by: str
    created_at: datetime
    started_at: datetime
    ended_at: datetime | None
    paused_by: str | None
    pending: int
    created: int
    completed: int
    failed: int
    canceled: int
    skipped: int
    blocks_done: int
    blocks_left: int
    rows_done: int
    blocks_per_second: float
    seconds_left: float | None
    """At the rate of the last five minutes; null: nobody can tell yet."""


class BackfillReply(BackfillItem):
    new: bool
    """False: the same was asked for before, and this is it."""


class BackfillList(ListReply[BackfillItem]):
    """One page of backfills."""


class BackfillCanceled(Reply):
    backfill_id: UUID
    state: BackfillState
    canceled_tasks: int
    asked_to_stop: int
    """Tasks that run; their workers learn of it with the next heartbeat."""


class BackfillResumed(Reply):
    backfill_id: UUID
    state: BackfillState
    chunks: int
    """How many are tried again."""


class ChunkItem(Reply):
    start: int
    end: int
    action: Action
    state: ChunkState
    rows: int | None
    task_id: UUID | None
    task_status: str | None
    error_message: str | None


class ChunkList(ListReply[ChunkItem]):
    """One page of the chunks of a backfill."""
