"""Plan a backfill: which chunks exist, which are missing, and their size."""

from dataclasses import dataclass, replace
from uuid import UUID

from trace_etl.dag.operators import FORWARDERS, OPERATORS, SplitConfig
from trace_etl.model.errors import Conflict, Fault, Invalid
from trace_etl.model.flow import ChunkAction
from trace_etl.model.scope import Range
from trace_etl.policy.backfill import (
    DEFAULT_CHUNK,
    Chunk,
    choose_chunk_size,
    keeps_partitions,
    plan_chunks,
)
from trace_etl.state.db.pool import Conn
from trace_etl.state.flow import backfills
from trace_etl.state.flow.backfills import BackfillTarget, NewBackfill

MAX_CHUNKS = 100_000


@dataclass(frozen=True)
class BackfillScope:
    """The job and block range of a backfill request."""

    org_id: UUID
    dag: str
    job: str
    span: Range
    chunk: int | None
    force: bool


@dataclass(frozen=True)
class BackfillPlan:
    """The chunks of a backfill, and the action that each of them needs."""

    target: BackfillTarget
    size: int
    chunks: list[Chunk]

    def count(self, action: ChunkAction) -> int:
        return sum(chunk.action == action for chunk in self.chunks)

    @property
    def to_build(self) -> list[Chunk]:
        return [c for c in self.chunks if c.action in ("build", "rebuild")]

    @property
    def rows(self) -> int | None:
        """Estimated rows to write; None if unknown."""
        counts = [chunk.rows for chunk in self.to_build]
        return sum(rows or 0 for rows in counts) if None not in counts else None


async def plan(conn: Conn, scope: BackfillScope) -> BackfillPlan:
    """Plan a backfill from the current partitions. Raises NotFound, Conflict, Invalid."""
    targets = await backfills.list_targets(conn, scope.org_id, scope.dag, scope.job)
    # Prefer an input with partitions: its partitions show which blocks can be read.
    target = next((t for t in targets if _is_fed_by_partitions(t)), targets[0])
    if target.makes_whole:
        raise Conflict(
            f"job {scope.job!r} has no block ranges: its partitions are made from all of its inputs; "
            "backfill the jobs that it reads, and it follows"
        )
    if target.activation == "source":
        return await _plan_triggers(conn, scope, target)
    if keeps_partitions(target.operator, target.update_strategy):
        return await _plan_partitions(conn, scope, target)
    return await _plan_scopes(conn, scope, target)


_OTHER_SOURCES = {
    "cron": "runs on a schedule",
    "webhook": "forwards deliveries",
    "always_on": "runs continuously",
}


async def _plan_triggers(conn: Conn, scope: BackfillScope, target: BackfillTarget) -> BackfillPlan:
    """Plan the events of a manual source: one per chunk. Raises Conflict for other sources."""
    readers = await backfills.list_readers(conn, target.dataset_uuid or UUID(int=0), FORWARDERS)
    operator = OPERATORS.get(target.operator)
    has_function = operator is not None and operator.is_source
    if target.source != "manual" or has_function:
        description = _OTHER_SOURCES.get(target.source or "", "cannot be triggered")
        if has_function:
            description = "runs a function, which chooses the blocks"
        advice = (
            f"backfill its consumers: {', '.join(readers)}" if readers else "no job reads it yet"
        )
        raise Conflict(f"job {scope.job!r} is a source that {description}; {advice}")
    if scope.chunk is None and not all(readers.values()):
        # A consumer processes each event as one task, so use the default chunk size.
        return await _plan_scopes(conn, replace(scope, chunk=DEFAULT_CHUNK), target)
    return await _plan_scopes(conn, scope, target)


async def _plan_partitions(
    conn: Conn, scope: BackfillScope, target: BackfillTarget
) -> BackfillPlan:
    version, density, lengths = target.output_version, None, list[int]()
    existing = list[backfills.ExistingScope]()
    input_spans = await _list_input_spans(conn, target, scope.span)
    if version is not None:
        lengths, density = await backfills.sample_partitions(conn, version)
        existing = await backfills.list_partitions(
            conn, version, _extend_to_input_partitions(scope.span, input_spans)
        )
    size = _choose_size(scope, target, lengths)
    chunks = plan_chunks(
        scope.span, size, existing, input_spans, force=scope.force, density=density
    )
    return _require_chunk_limit(BackfillPlan(target, size, chunks))


async def _plan_scopes(conn: Conn, scope: BackfillScope, target: BackfillTarget) -> BackfillPlan:
    if scope.force:
        raise Conflict(f"job {scope.job!r} keeps no partitions; rebuild a downstream job that does")
    input_spans = await _list_input_spans(conn, target, scope.span)
    size = _choose_size(scope, target, [])
    chunks = plan_chunks(scope.span, size, [], input_spans, force=False, density=None)
    _require_chunk_limit(BackfillPlan(target, size, chunks))
    completed = await backfills.list_completed(conn, target, [chunk.span for chunk in chunks])
    spans = {existing.span for existing in completed}
    marked_chunks = [replace(c, action="there") if c.span in spans else c for c in chunks]
    return BackfillPlan(target, size, marked_chunks)


async def _list_input_spans(conn: Conn, target: BackfillTarget, span: Range) -> list[Range] | None:
    if not _is_fed_by_partitions(target) or target.dataset_version is None:
        return None
    partitions = await backfills.list_partitions(conn, target.dataset_version, span)
    return [existing.span for existing in partitions]


def _is_fed_by_partitions(target: BackfillTarget) -> bool:
    operator, strategy = target.upstream_operator, target.upstream_strategy
    return operator is not None and keeps_partitions(operator, strategy or "")


def _extend_to_input_partitions(span: Range, input_spans: list[Range] | None) -> Range:
    """Return the range, extended so that it contains every input partition that it overlaps."""
    spans = [span, *(input_spans or [])]
    return Range(min(r.start for r in spans), max(r.end for r in spans))


def _choose_size(scope: BackfillScope, target: BackfillTarget, lengths: list[int]) -> int:
    upstream = OPERATORS.get(target.upstream_operator or "")
    is_splitter = upstream is not None and upstream.config is SplitConfig
    split_size = (
        SplitConfig.model_validate(target.upstream_config or {}).size if is_splitter else None
    )
    is_forwarder = not keeps_partitions(target.operator, target.update_strategy)
    size = choose_chunk_size(
        scope.chunk, split_size, lengths, range_length=scope.span.length, is_forwarder=is_forwarder
    )
    if not _is_fed_by_partitions(target) and scope.span.length // size >= MAX_CHUNKS:
        raise _make_size_fault(scope.span.length // size + 1)
    return size


def _require_chunk_limit(planned: BackfillPlan) -> BackfillPlan:
    if len(planned.chunks) > MAX_CHUNKS:
        raise _make_size_fault(len(planned.chunks))
    return planned


def _make_size_fault(count: int) -> Invalid:
    message = (
        f"{count} chunks exceed the limit of {MAX_CHUNKS}; use larger chunks or a smaller range"
    )
    return Invalid([Fault("chunk", message)])


async def request(conn: Conn, scope: BackfillScope, made_by: str) -> tuple[UUID, bool]:
    """Start a backfill. A repeated request returns the same backfill.

    Returns the id of the backfill, and whether it is new. Raises the same errors as `plan`.
    """
    first = await plan(conn, scope)
    await backfills.lock_job(conn, first.target.job_id)
    planned = await plan(conn, scope)  # plan again: other requests cannot change the state now
    new = NewBackfill(scope.org_id, planned.target, scope.span, planned.size, scope.force, made_by)
    earlier = await backfills.find_same(conn, new)
    if earlier and (earlier[1] == "running" or not planned.to_build):
        return earlier[0], False
    if not planned.to_build and not planned.count("there"):
        raise Conflict(
            f"{planned.target.upstream} has no data in blocks {scope.span.key}; backfill it first"
        )
    return await backfills.create(conn, new, planned.chunks), True
