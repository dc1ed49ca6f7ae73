"""Build the answer to a claim: the task payload and its capability token.

Every claim runs this code, so the parts that all tasks of a job share are rendered once. The rest is
built as plain dictionaries with the fields of `TaskPayload`; a test compares the two.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import orjson

from trace_etl.api.task.payload import WHOLE
from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.task_api.authorization.permissions import (
    Permissions,
    TokenScope,
    render_json,
)
from trace_etl.dispatcher.task_api.authorization.tokens import TaskTokens
from trace_etl.dispatcher.task_api.shared_parts import (
    PREVIOUS,
    PinnedParts,
    RevisionParts,
    SharedParts,
    UnknownGenerations,
)
from trace_etl.model.storage import attempt_prefix, export_prefix, scratch_prefix
from trace_etl.objects.store import ObjectStore
from trace_etl.state.catalog.revisions import Revision
from trace_etl.state.db.pool import CONNECTION_ERRORS, Conn, Pool
from trace_etl.state.invalidations import invalidations
from trace_etl.state.partitions import partition_queries
from trace_etl.state.routing import cursors
from trace_etl.state.tasks import read_grants
from trace_etl.state.tasks.claims import ClaimedTask

Payload = dict[str, Any]
_TRIES = 4
_RECORDED_SECONDS = 3600.0  # a document that was recorded earlier is recorded again
_MAX_RECORDED = 10_000
T = TypeVar("T")


class _ClaimParts(NamedTuple):
    """The payload of a claimed task and the permissions of its token."""

    attempt_prefix: str
    permissions: Permissions
    payload: Payload


class Payloads:
    """Build payloads. Revisions are immutable, so each is read once."""

    def __init__(
        self, pool: Pool, tokens: TaskTokens, cfg: DispatcherSettings, objects: ObjectStore
    ) -> None:
        self._pool = pool
        self._tokens = tokens
        self._shared = SharedParts(objects)
        self._grace = int(cfg.token_grace.total_seconds())
        self._max_token_life = int(cfg.max_token_life.total_seconds())
        self._recorded: OrderedDict[str, float] = OrderedDict()

    async def revision(self, conn: Conn, revision_id: UUID) -> Revision:
        """Return the job revision that a task was created from."""
        return (await self._shared.get_revision(conn, revision_id)).revision

    async def claimed(self, tasks: list[ClaimedTask]) -> list[bytes]:
        """Return the JSON answers to successful claims (`Claimed`)."""
        parts = [
            self._build_from_cache(task)
            or await self._run_connected(partial(self._read, task=task))
            for task in tasks
        ]
        await self._record_reads([part.permissions for part in parts])
        kid = self._tokens.kid()  # nothing is awaited below, so the key cannot change
        return [
            self._render_claim(task, part, kid) for task, part in zip(tasks, parts, strict=True)
        ]

    async def payload(self, conn: Conn, task: ClaimedTask) -> Payload:
        """Return the payload (`TaskPayload`) with the inputs pinned when its row was read."""
        return (await self._read(conn, task)).payload

    def _build_from_cache(self, task: ClaimedTask) -> _ClaimParts | None:
        """Build the payload without a query; None if a query is needed."""
        common = self._shared.find_revision(task.revision_id)
        if common is None or task.cursor_value is not None or task.invalidation_id is not None:
            return None
        if _is_whole(common.revision):
            return None
        try:
            pinned = self._shared.get_pinned(common, task.org_id, task.pins)
        except UnknownGenerations:
            return None
        return self._build(task, common, pinned, None, None)

    async def _run_connected(self, call: Callable[[Conn], Awaitable[T]]) -> T:
        # The claim is already committed, so one broken connection must not fail the call.
        for tries_left in reversed(range(_TRIES)):
            try:
                async with self._pool.connection() as conn:
                    return await call(conn)
            except CONNECTION_ERRORS:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _read(self, conn: Conn, task: ClaimedTask) -> _ClaimParts:
        common = await self._shared.get_revision(conn, task.revision_id)
        pins = task.pins
        if _is_whole(common.revision):
            pins = await _pin_previous(conn, common.revision, pins)
        pinned = await self._shared.load_pinned(conn, common, task.org_id, pins)
        after = await _find_start_cursor(conn, task, common.revision)
        return self._build(task, common, pinned, after, await _read_invalidation(conn, task))

    async def _record_reads(self, permissions: list[Permissions]) -> None:
        """Record the inputs that are too long for a token, before a token refers to them."""
        now = time.monotonic()
        missing = {
            p.reads.sha256: p.document
            for p in permissions
            if p.document is not None
            and p.reads.sha256 is not None
            and now > self._recorded.get(p.reads.sha256, -inf) + _RECORDED_SECONDS
        }
        if not missing:
            return
        await self._run_connected(partial(read_grants.record, documents=missing))
        for digest in missing:
            self._recorded[digest] = now
            self._recorded.move_to_end(digest)
        while len(self._recorded) > _MAX_RECORDED:
            self._recorded.popitem(last=False)

    def _render_claim(self, task: ClaimedTask, parts: _ClaimParts, kid: str) -> bytes:
        scope = TokenScope(
            task.org_id,
            task.task_id,
            task.attempt,
            parts.attempt_prefix,
            parts.permissions,
            parts.payload["scope"],
        )
        life = min(task.timeout_seconds + self._grace, self._max_token_life)
        return orjson.dumps(
            {
                "status": "Claimed",
                "attempt": task.attempt,
                "lease_token": task.lease_token,
                "lease_expires_at": task.lease_expires_at,
                "capability_token": self._tokens.mint(scope, life, kid),
                "task": parts.payload,
            },
            option=orjson.OPT_UTC_Z,
        )

    def _build(
        self,
        task: ClaimedTask,
        common: RevisionParts,
        pinned: PinnedParts,
        after: int | None,
        invalid: dict[str, Any] | None,
    ) -> _ClaimParts:
        prefix = attempt_prefix("", task.task_id, task.attempt)
        scope = {
            "partition_key": task.partition_key,
            "start": task.range_start,
            "end": task.range_end,
            "cursor": task.cursor_value,
            "after": after,
        }
        payload = {
            "task_id": task.task_id,
            "attempt": task.attempt,
            "org_id": task.org_id,
            "job": common.job,
            "operator": common.revision.operator,
            "runtime": common.revision.runtime,
            "config": common.config,
            "scope": scope,
            "parameters": None if task.parameters is None else orjson.Fragment(task.parameters),
            "partition_by": common.revision.partition_by,
            "is_refresh": task.is_refresh,
            "previous": pinned.previous,
            "udf": common.udf,
            "secrets": common.revision.secrets,
            "invalidation": invalid,
            "inputs": pinned.inputs,
            "outputs": common.outputs.fill(prefix),
            "checks": common.checks,
            "scratch_ref": self._shared.object_ref(
                task.org_id, scratch_prefix(task.org_id) + prefix, "*"
            ),
            "export_ref": self._shared.object_ref(
                task.org_id, export_prefix(task.org_id) + prefix, "*"
            ),
            "timeout_seconds": task.timeout_seconds,
            "heartbeat_seconds": max(0.05, task.lease_seconds / 4),
        }
        return _ClaimParts(prefix, pinned.permissions, payload)


def _is_whole(revision: Revision) -> bool:
    return revision.execution_strategy == "WholeDataset"


async def _pin_previous(conn: Conn, revision: Revision, pins: str | None) -> str | None:
    """Add the committed output of a job over whole datasets to the pins of its task.

    It may be newer than the inputs that are pinned: the worker compares what it was made from.
    """
    version = revision.outputs[0].dataset_version
    ref = await partition_queries.find_storage(conn, version, WHOLE)
    if ref is None or pins is None:
        return pins
    added = [PREVIOUS, str(version), None, [[WHOLE, None, None, ref]]]
    return orjson.dumps([*orjson.loads(pins), added]).decode()


async def _find_start_cursor(conn: Conn, task: ClaimedTask, revision: Revision) -> int | None:
    # A task that repairs an invalidation reads its whole scope again.
    if task.cursor_value is None or task.invalidation_id is not None:
        return None
    if revision.execution_strategy != "PerUpdate":
        return None
    return await cursors.find_start(conn, task.task_id)


async def _read_invalidation(conn: Conn, task: ClaimedTask) -> dict[str, Any] | None:
    if task.invalidation_id is None:
        return None
    scope = (await invalidations.get_scopes(conn, [task.invalidation_id])).get(task.invalidation_id)
    if scope is None:  # retention has deleted the invalidation
        return None
    return {**scope.model_dump(), "filter": render_json(scope.filter)}
