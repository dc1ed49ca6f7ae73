"""The task lifecycle behind the HTTP calls: claim, heartbeat, complete, events."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import get_args
from uuid import UUID

import orjson

from trace_etl.api.task import events as event_bodies
from trace_etl.api.task import lifecycle as bodies
from trace_etl.api.task.checks import CheckResult
from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.task_api import idempotency, publications
from trace_etl.dispatcher.task_api.authorization import output_authorization
from trace_etl.dispatcher.task_api.authorization.tokens import Capability, TaskTokens
from trace_etl.dispatcher.task_api.batch_writer import BatchWriter
from trace_etl.dispatcher.task_api.claims import Claims
from trace_etl.dispatcher.task_api.payloads import Payloads
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.http.problems import problem
from trace_etl.model.errors import (
    CompletionMismatch,
    LeaseLost,
    NotFound,
    PartitionOverlap,
    TraceError,
)
from trace_etl.model.task import Fence, TaskStatus
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.retry import Backoff, retry_delay
from trace_etl.state.db.pool import Conn, Pool, ReusedConnections, transaction
from trace_etl.state.invalidations import defects, invalidations
from trace_etl.state.invalidations.invalidations import NewInvalidation
from trace_etl.state.partitions import check_results, partition_commit, time_partitions
from trace_etl.state.partitions.new_partition import NewPartition
from trace_etl.state.partitions.partition_pointers import ConcurrentCommit
from trace_etl.state.routing import chain_heads
from trace_etl.state.tasks import claims, completions, leases, task_queries
from trace_etl.state.tasks.completions import Completion, FenceState, NewEvent
from trace_etl.state.tasks.leases import Extension

_CHAIN_MISMATCH = "chain_mismatch"
_COMMIT_TRIES = 3  # when other attempts commit overlapping ranges concurrently


@dataclass(frozen=True)
class Parts:
    """Collaborators of the lifecycle."""

    pool: Pool
    writer_connections: ReusedConnections
    tokens: TaskTokens
    payloads: Payloads
    wake: WakeEvents
    objects: ObjectStore
    retry: Backoff


_ACCEPTED = {status: bodies.CompleteAccepted(task_status=status) for status in get_args(TaskStatus)}


class Lifecycle:
    """Perform every transition of a task. Each one is fenced and committed once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._claims = Claims(parts.writer_connections, parts.payloads)
        self._heartbeats = BatchWriter(
            "heartbeat", parts.writer_connections, self._write_heartbeats
        )
        self._event_records = BatchWriter("events", parts.writer_connections, self._write_events)
        self._completions = BatchWriter("complete", parts.writer_connections, self._complete_batch)

    # --- claim ------------------------------------------------------------------------------

    async def claim(self, body: bodies.Claim) -> bytes:
        """Claim one task. Returns the JSON answer, claimed or not."""
        return await self._claims.claim(body)

    async def claim_many(self, body: bodies.ClaimMany) -> bytes:
        """Claim up to `max_tasks` ready tasks of a runtime, oldest first. Returns the JSON answer."""
        return await self._claims.claim_many(body)

    async def fetch(self, task_id: UUID) -> bytes:
        """Return the task as JSON. A running task with a cancel request has status Canceled. Raises NotFound."""
        async with self._parts.pool.connection() as conn:
            task = await task_queries.get_task(conn, None, task_id)
            row = await claims.get_claimed(conn, task_id)
            payload = await self._parts.payloads.payload(conn, row)
        to_stop = task.cancel_requested and task.status == "Running"
        status = "Canceled" if to_stop else task.status
        return orjson.dumps(
            {
                "task_id": task_id,
                "status": status,
                "attempt": task.attempt,
                "cancel_requested": task.cancel_requested,
                "task": payload,
            }
        )

    # --- heartbeat --------------------------------------------------------------------------

    async def heartbeat(
        self, body: bodies.Heartbeat, caller: Capability, token: str
    ) -> bodies.HeartbeatAccepted:
        """Extend the caller's lease. Raises LeaseLost, on which the worker must stop immediately."""
        caller.require(body.fence())
        lease = await self._heartbeats.submit(Extension(body.fence(), body.isolation))
        renewed = self._parts.tokens.renew(token) if caller.is_nearly_expired(time.time()) else None
        return bodies.HeartbeatAccepted(
            lease_expires_at=lease.lease_expires_at,
            cancel_requested=lease.cancel_requested,
            hold=lease.hold,
            capability_token=renewed,
        )

    async def _write_heartbeats(
        self, conn: Conn, heartbeats: list[Extension]
    ) -> list[leases.Lease | Exception]:
        extended = await leases.extend(conn, heartbeats)
        fences = [heartbeat.fence for heartbeat in heartbeats]
        refused = [f.task_id for f in fences if f not in extended]
        states = await completions.fence_states(conn, refused) if refused else {}
        return [extended.get(f) or _make_refusal(f, states.get(f.task_id)) for f in fences]

    # --- complete ---------------------------------------------------------------------------

    async def complete(self, body: bodies.Complete, caller: Capability) -> bodies.CompleteAccepted:
        """End the caller's attempt and commit its outputs, events and publications with it."""
        caller.require(body.fence())
        return _ACCEPTED[await self._complete(body, caller)]

    async def complete_many(
        self, requests: list[bodies.CompleteWithToken]
    ) -> list[bodies.CompleteAccepted | bodies.CompleteRefused]:
        """Handle several completions independently. Those without content share a commit."""
        started = [self._start_completion(request) for request in requests]
        return [await _answer(completion) for completion in started]

    def _start_completion(self, body: bodies.CompleteWithToken) -> Awaitable[str] | TraceError:
        try:
            caller = self._parts.tokens.verify(body.capability_token)
            caller.require(body.fence())
        except TraceError as error:
            return error
        if idempotency.has_no_content(body):
            return self._completions.enter(self._make_completion(body))
        return asyncio.ensure_future(self._complete(body, caller))

    async def _complete(self, body: bodies.Complete, caller: Capability) -> str:
        """Complete an attempt and return the task's new status."""
        if idempotency.has_no_content(body):
            return await self._completions.submit(self._make_completion(body))
        for output in body.outputs:
            output_authorization.require_output(caller, output.dataset_uuid, output.dataset_version)
        published = await publications.verify(self._parts.objects, body.datasets_published, caller)
        events = await self._make_events(body.events, caller)
        events += publications.missing_events(published, events)
        completion = self._make_completion(body, events)
        if body.datasets_published or body.invalidations or body.mapped_partitions or body.checks:
            invalid = await self._make_invalidations(body.invalidations, caller)
            status = await self._complete_and_publish(
                completion, published, invalid, caller, body.mapped_partitions, body.checks
            )
        else:
            status = await self._completions.submit(completion)
        self._parts.wake.outbox.set()
        return status

    def _make_completion(
        self, body: bodies.Complete, events: Sequence[NewEvent] = ()
    ) -> Completion:
        return Completion(
            fence=body.fence(),
            status=body.status,
            content_hash=idempotency.hash_completion(body),
            error_code=body.error_code,
            error_message=body.error_message,
            retry_after=retry_delay(
                body.attempt,
                self._parts.retry,
                retryable=body.status == "Failed" and body.retryable,
            ),
            is_premature=body.status == "Failed" and body.retryable and body.premature,
            is_unreachable=body.unreachable,
            isolation=body.isolation,
            events=events,
            outputs=[output.model_dump(mode="json", exclude_none=True) for output in body.outputs],
        )

    async def _complete_batch(self, conn: Conn, batch: list[Completion]) -> list[str | Exception]:
        # Write one completion per task at a time: if two completions of a task are in the batch, the one with a
        # stale fence must not prevent the other.
        answers: dict[int, str | Exception] = {}
        remaining: list[Completion] = batch
        while remaining:
            first: dict[UUID, Completion] = {c.fence.task_id: c for c in reversed(remaining)}
            answers |= await self._complete_each(conn, list(first.values()))
            remaining = [c for c in remaining if first[c.fence.task_id] is not c]
        return [answers[id(c)] for c in batch]

    async def _complete_each(
        self, conn: Conn, batch: list[Completion]
    ) -> dict[int, str | Exception]:
        plain = [c for c in batch if c.is_plain]
        statuses = await completions.complete_plain(conn, plain) if plain else {}
        remaining = [c for c in batch if c.fence.task_id not in statuses]
        statuses |= await completions.complete(conn, remaining) if remaining else {}
        metrics.count_transitions(statuses.values())
        failed = [c for c in batch if c.error_code == _CHAIN_MISMATCH]
        metrics.REJECTED_ANSWERS.labels("failed").inc(
            len([c for c in failed if c.fence.task_id in statuses])
        )
        self._parts.wake.note_completion()
        refused = [c.fence.task_id for c in batch if c.fence.task_id not in statuses]
        states = await completions.fence_states(conn, refused) if refused else {}
        return {
            id(c): statuses.get(c.fence.task_id)
            or _repeat_or_refusal(c, states.get(c.fence.task_id))
            for c in batch
        }

    async def _complete_and_publish(
        self,
        completion: Completion,
        published: list[NewPartition],
        invalid: list[NewInvalidation],
        caller: Capability,
        mapped: Sequence[bodies.MappedPartition],
        checks: Sequence[CheckResult],
    ) -> str:
        fence = completion.fence
        for tries_left in reversed(range(_COMMIT_TRIES)):
            try:
                async with transaction(self._parts.pool) as conn:
                    statuses = await completions.complete(conn, [completion])
                    if fence.task_id in statuses:
                        if published:
                            await partition_commit.commit(conn, fence, published, checks)
                        elif checks:
                            await check_results.require_results(conn, fence, checks, [])
                            is_committed = completion.status == "Completed"
                            await check_results.record(
                                conn, fence, checks, is_committed=is_committed
                            )
                        if invalid:
                            await _record_invalidations(conn, caller.org_id, fence, invalid)
                        if mapped:
                            await time_partitions.record(conn, fence, mapped)
                        metrics.count_transitions(statuses.values())
                        # The outputs of an attempt have the same list.
                        corrected = max((len(p.rejected) for p in published), default=0)
                        metrics.REJECTED_ANSWERS.labels("corrected").inc(corrected)
                        return statuses[fence.task_id]
                    states = await completions.fence_states(conn, [fence.task_id])
                answer = _repeat_or_refusal(completion, states.get(fence.task_id))
                if isinstance(answer, Exception):
                    raise answer
                return answer
            except ConcurrentCommit as error:
                if not tries_left:
                    raise PartitionOverlap(
                        "other attempts commit overlapping ranges; retry"
                    ) from error
        raise AssertionError("unreachable")

    # --- events -----------------------------------------------------------------------------

    async def events(
        self, body: event_bodies.Events, caller: Capability
    ) -> event_bodies.EventsAccepted:
        """Record events of a running attempt and enqueue their routing."""
        caller.require(body.fence())
        if body.chain_head is not None:
            await self._record_chain_head(body.fence(), body.chain_head)
            if not body.events and not body.invalidations:
                return event_bodies.EventsAccepted(accepted=0)
        events = await self._make_events(body.events, caller)
        if body.invalidations:
            reported = await self._make_invalidations(body.invalidations, caller)
            invalid = _add_once_keys(reported, body)
            accepted = await self._record_with_invalidations(body.fence(), events, invalid, caller)
        else:
            accepted = await self._event_records.submit((body.fence(), events))
        self._parts.wake.outbox.set()
        return event_bodies.EventsAccepted(accepted=accepted)

    async def _record_chain_head(self, fence: Fence, head: event_bodies.ChainHead) -> None:
        async with transaction(self._parts.pool) as conn:
            if not await chain_heads.record(conn, fence, head):
                raise await explain_refusal(conn, fence)

    async def _write_events(
        self, conn: Conn, batch: list[tuple[Fence, list[NewEvent]]]
    ) -> list[int | Exception]:
        counts: dict[int, int | None] = {}
        # Ordered by task id, so that two batches cannot deadlock.
        order = sorted(range(len(batch)), key=lambda n: batch[n][0].task_id)
        # A single statement needs no explicit transaction.
        async with conn.transaction() if len(batch) > 1 else nullcontext():
            for n in order:
                counts[n] = await completions.record_events(conn, *batch[n])
        return [
            await explain_refusal(conn, fence) if (count := counts[n]) is None else count
            for n, (fence, _) in enumerate(batch)
        ]

    async def _record_with_invalidations(
        self,
        fence: Fence,
        events: list[NewEvent],
        invalid: list[NewInvalidation],
        caller: Capability,
    ) -> int:
        async with transaction(self._parts.pool) as conn:
            await _record_invalidations(conn, caller.org_id, fence, invalid)
            accepted = await completions.record_events(conn, fence, events)
            if accepted is None:
                raise await explain_refusal(conn, fence)
        return accepted

    async def _make_events(self, events: list[bodies.Event], caller: Capability) -> list[NewEvent]:
        names = output_authorization.list_names(events, "events")
        uuids = await self._resolve_names(caller.org_id, names)
        return [output_authorization.new_event(event, caller, uuids) for event in events]

    async def _make_invalidations(
        self, items: list[bodies.Invalidation], caller: Capability
    ) -> list[NewInvalidation]:
        names = output_authorization.list_names(items, "invalidations")
        uuids = await self._resolve_names(caller.org_id, names)
        return [output_authorization.new_invalidation(item, caller, uuids) for item in items]

    async def _resolve_names(self, org_id: UUID, names: dict[str, str]) -> dict[str, UUID]:
        if not names:
            return {}
        async with self._parts.pool.connection() as conn:
            return await output_authorization.resolve_names(conn, org_id, names)


def _add_once_keys(
    reported: list[NewInvalidation], body: event_bodies.Events
) -> list[NewInvalidation]:
    """Derive missing keys from the call, so that a repeated call records nothing new."""
    call = f"call:{body.attempt}:{idempotency.hash_call(body).hex()[:32]}"
    return [
        item if item.once_key is not None else replace(item, once_key=f"{call}:{n}")
        for n, item in enumerate(reported)
    ]


async def _answer(
    started: Awaitable[str] | TraceError,
) -> bodies.CompleteAccepted | bodies.CompleteRefused:
    try:
        if isinstance(started, TraceError):
            raise started
        return _ACCEPTED[await started]
    except TraceError as error:
        return bodies.CompleteRefused(problem=problem(error)[1])


async def _record_invalidations(
    conn: Conn, org_id: UUID, fence: Fence, invalid: list[NewInvalidation]
) -> None:
    made_by = f"task:{fence.task_id}"
    of_outputs = [item for item in invalid if not item.is_reported_defect]
    if of_outputs:
        await invalidations.record(conn, org_id, of_outputs, made_by=made_by, fence=fence)
    of_inputs = [item for item in invalid if item.is_reported_defect]
    if of_inputs:
        await defects.record(conn, fence, of_inputs)


def _repeat_or_refusal(completion: Completion, state: FenceState | None) -> str | TraceError:
    """Accept a repeat of the accepted completion; refuse other content for the same attempt."""
    fence = completion.fence
    current = state is not None and (state.attempt, state.lease_token) == (
        fence.attempt,
        fence.lease_token,
    )
    if state is None or not current or state.completion_hash is None:
        return _make_refusal(fence, state)
    if state.completion_hash == completion.content_hash:
        return state.status
    return CompletionMismatch(
        f"attempt {fence.attempt} was already completed with different content; do not repeat it"
    )


def _make_refusal(fence: Fence, state: FenceState | None) -> TraceError:
    """Return the error for a fence that does not match the task's current state."""
    if state is None:
        return NotFound(f"no task {fence.task_id}; stop this attempt")
    if state.attempt != fence.attempt:
        return LeaseLost(
            "stale_attempt", f"attempt {state.attempt} is the current one; stop this one"
        )
    if state.lease_token != fence.lease_token:
        return LeaseLost("stale_lease", "another lease holds this attempt; stop it")
    return LeaseLost("not_running", f"the task is {state.status}; stop this attempt")


async def explain_refusal(conn: Conn, fence: Fence) -> TraceError:
    """Read the task and return the error for a fence that does not match."""
    states = await completions.fence_states(conn, [fence.task_id])
    return _make_refusal(fence, states.get(fence.task_id))
