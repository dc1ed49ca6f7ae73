"""Operators that run inside the Dispatcher: they split and join block ranges, and forward invalidations."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from trace_etl.dag.operators import AggregateConfig, SplitConfig
from trace_etl.model.errors import Fault, Invalid
from trace_etl.model.scope import Range
from trace_etl.policy.ranges import split_range
from trace_etl.state.catalog.revisions import Revision, RevisionOutput
from trace_etl.state.db.pool import Conn
from trace_etl.state.invalidations import invalidations
from trace_etl.state.invalidations.invalidations import NewInvalidation
from trace_etl.state.routing import aggregation, cursors, events
from trace_etl.state.tasks.claims import ClaimedTask
from trace_etl.state.tasks.completions import NewEvent

_MAX_PARTITIONS = 100_000


@dataclass(frozen=True)
class InlineResult:
    """Events and invalidations that an inline operator reports about its output."""

    events: list[NewEvent] = field(default_factory=list[NewEvent])
    invalidations: list[NewInvalidation] = field(default_factory=list[NewInvalidation])


Operate = Callable[[Conn, ClaimedTask, Revision], Awaitable[InlineResult]]


async def run_operator(conn: Conn, task: ClaimedTask, revision: Revision) -> InlineResult:
    """Run the inline operator of a task. Raises TraceError."""
    operators: dict[str, Operate] = {
        "range_splitter": _split_range,
        "range_aggregator": _aggregate_ranges,
    }
    operate = operators.get(revision.operator)
    if operate is None:
        raise Invalid(
            [Fault("operator", f"operator `{revision.operator}` cannot run in the Dispatcher")]
        )
    return await operate(conn, task, revision)


async def _split_range(conn: Conn, task: ClaimedTask, revision: Revision) -> InlineResult:
    span = _get_task_range(task)
    if span is None:
        raise Invalid(
            [
                Fault(
                    "scope",
                    "range_splitter needs a block range to split; trigger its source with a range",
                )
            ]
        )
    out = revision.outputs[0]
    if task.invalidation_id is not None:
        # Forward the whole range: the partitions of consumers may have other boundaries.
        return InlineResult(
            invalidations=[await _forward_invalidation(conn, task, out, span, "row_range")]
        )
    size = SplitConfig.model_validate(revision.config).size
    _check_range_count(span, size)
    # Ranges that overlap would be committed twice, so each block is emitted once.
    new = await events.find_new_ranges(conn, out.dataset_version, span)
    pieces = [piece for part in new for piece in split_range(part.start, part.end, size)]
    return InlineResult([_make_event(out, Range(a, b)) for a, b in pieces])


async def _aggregate_ranges(conn: Conn, task: ClaimedTask, revision: Revision) -> InlineResult:
    config = AggregateConfig.model_validate(revision.config)
    out = revision.outputs[0]
    span = await _find_changed_range(conn, task, config.start)
    if span is None:
        return InlineResult()
    _check_range_count(span, config.size)
    if task.invalidation_id is not None:
        emitted = await aggregation.list_emitted(conn, task.task_id, span, size=config.size)
        return InlineResult(
            invalidations=[
                await _forward_invalidation(conn, task, out, r, "partition") for r in emitted
            ]
        )
    completed = await aggregation.add_blocks(conn, task.task_id, span, size=config.size)
    repeated = [c.span for c in completed if c.was_emitted_before]
    return InlineResult(
        [_make_event(out, c.span) for c in completed],
        [
            _make_invalidation(out, r, "partition", "the input has a new generation")
            for r in repeated
        ],
    )


async def _find_changed_range(conn: Conn, task: ClaimedTask, start: int) -> Range | None:
    """Return the blocks of an upstream change: its partition, or everything up to its cursor."""
    span = _get_task_range(task)
    if span is not None or task.cursor_value is None:
        return span
    start_cursor = await cursors.find_start(conn, task.task_id)
    first = start if start_cursor is None else max(start, start_cursor + 1)
    return Range(first, task.cursor_value) if first <= task.cursor_value else None


def _get_task_range(task: ClaimedTask) -> Range | None:
    if task.range_start is None or task.range_end is None:
        return None
    return Range(task.range_start, task.range_end)


def _check_range_count(span: Range, size: int) -> None:
    count = -(-span.length // size) + 1
    if count > _MAX_PARTITIONS:
        raise Invalid(
            [
                Fault(
                    "config.size",
                    f"{count} ranges exceed the limit of {_MAX_PARTITIONS}; use a larger size",
                )
            ]
        )


def _make_event(out: RevisionOutput, span: Range) -> NewEvent:
    key = span.key
    return NewEvent(
        out.dataset_uuid, out.dataset_version, f"p:{key}", key, span.start, span.end, None
    )


async def _forward_invalidation(
    conn: Conn, task: ClaimedTask, out: RevisionOutput, span: Range, kind: str
) -> NewInvalidation:
    ids = [task.invalidation_id] if task.invalidation_id else []
    cause = next(iter((await invalidations.get_scopes(conn, ids)).values()), None)
    new = _make_invalidation(out, span, kind, cause.reason if cause else "")
    return replace(new, is_reorganisation=cause is not None and cause.is_reorganisation)


def _make_invalidation(out: RevisionOutput, span: Range, kind: str, reason: str) -> NewInvalidation:
    return NewInvalidation(
        dataset_uuid=out.dataset_uuid,
        dataset_version=out.dataset_version,
        kind=kind,
        partition_key=span.key if kind == "partition" else None,
        range_start=span.start,
        range_end=span.end,
        filter=None,
        reason=reason,
    )
