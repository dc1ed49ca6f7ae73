"""Backfills."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from trace_etl.api.body import JobRange, ListReply, Reply
from trace_etl.model.flow import ChunkAction
from trace_etl.model.scope import MAX_BLOCK

BackfillState = Literal["running", "complete", "failed", "canceled"]
ChunkState = Literal["pending", "created", "completed", "failed", "canceled", "skipped"]


class BackfillRequest(JobRange):
    """A block range of a job to build."""

    chunk: Annotated[int, Field(ge=1, le=MAX_BLOCK)] | None = None
    """Blocks per task. Default: the upstream split size, or the usual size of existing partitions."""
    force: bool = False
    """Also rebuild existing partitions."""


class ChunkPlan(Reply):
    start: int
    end: int
    action: ChunkAction
    rows: int | None
    """Rows of an existing chunk, or an estimate for a missing one; null if unknown."""


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
    """Chunks for which the upstream dataset has no data."""
    blocks: int
    """Blocks to build or rebuild."""
    rows: int | None
    """Estimated rows to write, from existing partitions; null if there are none."""
    chunks: list[ChunkPlan]
    """The first 1,000 chunks."""


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
    """Estimated from the last five minutes; null if unknown."""


class BackfillReply(BackfillItem):
    new: bool
    """False if an earlier request created the same backfill."""


class BackfillList(ListReply[BackfillItem]):
    """One page of backfills."""


class BackfillCanceled(Reply):
    backfill_id: UUID
    state: BackfillState
    canceled_tasks: int
    asked_to_stop: int
    """Running tasks. Their workers receive the request to stop with the next heartbeat."""


class BackfillResumed(Reply):
    backfill_id: UUID
    state: BackfillState
    chunks: int
    """Number of chunks that are retried."""


class ChunkItem(Reply):
    start: int
    end: int
    action: ChunkAction
    state: ChunkState
    rows: int | None
    task_id: UUID | None
    task_status: str | None
    error_message: str | None


class ChunkList(ListReply[ChunkItem]):
    """One page of the chunks of a backfill."""
