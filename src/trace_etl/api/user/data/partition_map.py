"""The partitions of a dataset by block, counted in buckets of equal width."""

from datetime import datetime
from uuid import UUID

from trace_etl.api.body import Reply
from trace_etl.api.user.data.datasets import GenerationState

MAX_BUCKETS = 2000
MAX_LISTED = 2000
"""The maximum of partitions that are listed one by one. A window with more is only counted."""


class MapPartition(Reply):
    partition_key: str
    start: int
    end: int
    row_count: int
    byte_count: int
    task_id: UUID
    attempt: int
    committed_at: datetime
    is_stale: bool
    """Whether an input was replaced after this partition was made from it."""


class MapTasks(Reply):
    """Unfinished or failed tasks of the producing jobs, in one bucket."""

    bucket: int
    queued: int
    running: int
    failed: int


class MapInvalidation(Reply):
    invalidation_id: UUID
    start: int
    end: int
    reason: str
    is_reorganisation: bool
    """The chain replaced these blocks."""
    made_at: datetime
    is_open: bool
    """Whether a consumer has not processed it yet."""


class MapHot(Reply):
    """Newest blocks that readers see in a table of Postgres data, not in partitions."""

    dag: str
    job: str
    output: str
    start: int
    end: int
    dataset_uuid: UUID
    dataset_version: UUID


class PartitionMap(Reply):
    dataset: str
    dataset_version: UUID
    state: GenerationState
    first: int | None
    """The first block of the dataset, hot ones included; null if it has no block."""
    last: int | None
    start: int
    end: int
    """The window. Both blocks belong to it."""
    buckets: int
    partitions: list[int]
    """Partitions that begin in each bucket. Bucket `i` has the blocks from
    `start + i * width // buckets` on, where `width` is the number of blocks of the window."""
    blocks: list[int]
    """Blocks of each bucket that a partition covers."""
    stale: list[int]
    """Partitions that begin in each bucket and were made from a partition that was replaced since. If
    more than 10,000 partitions of inputs were replaced, only the newest replacements are looked at."""
    hot: MapHot | None
    tasks: list[MapTasks]
    invalidations: list[MapInvalidation]
    """The newest ones, also those of the hot table, at most 200."""
    listed: list[MapPartition] | None
    """The partitions one by one, if the window has at most 2,000."""
    without_range: int
    """Partitions that have no block range and are not on the map."""
