"""Build the answer to a claim: the task payload and its capability token.

Every claim runs this code, so the parts that all tasks of a job share are rendered once. The rest is
built as plain dictionaries with the fields of `TaskPayload`; a test compares the two.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from trace_etl.dag.operators import OPERATORS
from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.task_api.permissions import (
    PLACEHOLDER,
    DatasetGrant,
    JsonTemplate,
    Permissions,
    TokenScope,
)
from trace_etl.dispatcher.task_api.tokens import TaskTokens
from trace_etl.model.storage import attempt_prefix, buffer_prefix, generation_prefix
from trace_etl.objects.store import ObjectStore
from trace_etl.state.catalog import revisions
from trace_etl.state.catalog.revisions import Revision, RevisionOutput
from trace_etl.state.db.pool import CONNECTION_ERRORS, Conn, Pool
from trace_etl.state.partitions import invalidations
from trace_etl.state.routing import cursors
from trace_etl.state.tasks.claims import ClaimedTask

Payload = dict[str, Any]
_TRIES = 4
_PIN_CACHE_SIZE = 1024  # sets of pins
_MAX_CACHED_PINS = 4096  # characters; longer sets of pins rarely repeat


@dataclass(frozen=True)
class _RevisionParts:
    """Rendered parts that all tasks of a revision share."""

    revision: Revision
    job: orjson.Fragment
    config: orjson.Fragment
    wheres: tuple[orjson.Fragment, ...]
    writes: list[DatasetGrant]
    """Locations of the outputs; each attempt writes under its own prefix."""
    outputs: JsonTemplate
    can_invalidate_inputs: bool


class _ClaimParts(NamedTuple):
    """The payload of a claimed task and the permissions of its token."""

    attempt_prefix: str
    permissions: Permissions
    payload: Payload


class _PinnedParts(NamedTuple):
    """Rendered parts that tasks of a revision with the same pins share."""

    inputs: orjson.Fragment
    permissions: Permissions


class Payloads:
    """Build payloads. Revisions are immutable, so each is read once."""

    def __init__(
        self, pool: Pool, tokens: TaskTokens, cfg: DispatcherSettings, objects: ObjectStore
    ) -> None:
        self._pool = pool
        self._tokens = tokens
        self._storage = {"scheme": objects.scheme, "bucket": cfg.object_bucket}
        self._grace = int(cfg.token_grace.total_seconds())
        self._max_token_life = int(cfg.max_token_life.total_seconds())
        self._revisions: dict[UUID, _RevisionParts] = {}
        self._render_pinned_parts_cached = lru_cache(_PIN_CACHE_SIZE)(self._render_pinned_parts)

    async def revision(self, conn: Conn, revision_id: UUID) -> Revision:
        """Return the job revision that a task was created from."""
        return (await self._get_revision_parts(conn, revision_id)).revision

    async def claimed(self, tasks: list[ClaimedTask]) -> list[bytes]:
        """Return the JSON answers to successful claims (`Claimed`)."""
        parts = [
            self._build_from_cache(task) or await self._read_with_retries(task) for task in tasks
        ]
        kid = self._tokens.kid()  # nothing is awaited below, so the key cannot change
        return [
            self._render_claim(task, part, kid) for task, part in zip(tasks, parts, strict=True)
        ]

    async def payload(self, conn: Conn, task: ClaimedTask) -> Payload:
        """Return the payload (`TaskPayload`) with the inputs pinned when its row was read."""
        return (await self._read(conn, task)).payload

    def _build_from_cache(self, task: ClaimedTask) -> _ClaimParts | None:
        """Build without a query. None if the revision, a cursor or an invalidation must be read."""
        common = self._revisions.get(task.revision_id)
        if common is None or task.cursor_value is not None or task.invalidation_id is not None:
            return None
        return self._build(task, common, None, None)

    async def _read_with_retries(self, task: ClaimedTask) -> _ClaimParts:
        # The claim is already committed, so one broken connection must not fail the call.
        for tries_left in reversed(range(_TRIES)):
            try:
                async with self._pool.connection() as conn:
                    return await self._read(conn, task)
            except CONNECTION_ERRORS:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _read(self, conn: Conn, task: ClaimedTask) -> _ClaimParts:
        common = await self._get_revision_parts(conn, task.revision_id)
        after = await _find_start_cursor(conn, task, common.revision)
        return self._build(task, common, after, await _read_invalidation(conn, task))

    async def _get_revision_parts(self, conn: Conn, revision_id: UUID) -> _RevisionParts:
        parts = self._revisions.get(revision_id)
        if parts is None:
            parts = self._render_revision(await revisions.load_revision(conn, revision_id))
            self._revisions[revision_id] = parts
        return parts

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
        common: _RevisionParts,
        after: int | None,
        invalid: dict[str, Any] | None,
    ) -> _ClaimParts:
        prefix = attempt_prefix("", task.task_id, task.attempt)
        pinned = self._get_pinned_parts(common, task.pins)
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
            "job": common.job,
            "operator": common.revision.operator,
            "config": common.config,
            "scope": scope,
            "invalidation": invalid,
            "inputs": pinned.inputs,
            "outputs": common.outputs.fill(prefix),
            "timeout_seconds": task.timeout_seconds,
            "heartbeat_seconds": max(0.05, task.lease_seconds / 4),
        }
        return _ClaimParts(prefix, pinned.permissions, payload)

    # --- rendered once per revision -----------------------------------------------------------

    def _render_revision(self, revision: Revision) -> _RevisionParts:
        operator = OPERATORS.get(revision.operator)
        writes = [
            DatasetGrant(out.dataset_uuid, out.dataset_version, self._ref(_output_prefix(out)))
            for out in revision.outputs
        ]
        return _RevisionParts(
            revision=revision,
            job=_render_json({"dag_name": revision.dag_name, "name": revision.job_name}),
            config=_render_json(revision.config),
            wheres=tuple(_render_json(item.where) for item in revision.inputs),
            writes=writes,
            outputs=JsonTemplate(_list_outputs(revision, writes)),
            can_invalidate_inputs=operator is not None and operator.can_invalidate_inputs,
        )

    def _get_pinned_parts(self, common: _RevisionParts, pins: str | None) -> _PinnedParts:
        pin = (
            self._render_pinned_parts_cached
            if len(pins or "") <= _MAX_CACHED_PINS
            else self._render_pinned_parts
        )
        return pin(common.revision.revision_id, pins)

    def _render_pinned_parts(self, revision_id: UUID, pins: str | None) -> _PinnedParts:
        common = self._revisions[revision_id]
        inputs = _list_inputs(common, pins)
        # The prefix of a generation covers all its partitions, which keeps the token small.
        reads = [
            DatasetGrant(
                dataset_uuid, UUID(version), self._ref(generation_prefix(dataset_uuid, version))
            )
            for dataset_uuid, version in ((i["dataset_uuid"], i["dataset_version"]) for i in inputs)
        ]
        permissions = Permissions(
            reads, common.writes, can_invalidate_inputs=common.can_invalidate_inputs
        )
        return _PinnedParts(orjson.Fragment(orjson.dumps(inputs)), permissions)

    def _ref(self, prefix: str) -> dict[str, str]:
        return {**self._storage, "prefix": prefix, "glob": "*.parquet"}


def _list_outputs(revision: Revision, writes: list[DatasetGrant]) -> list[dict[str, Any]]:
    return [
        {
            "output_index": out.output_index,
            "name": out.name,
            "dataset_uuid": out.dataset_uuid,
            "dataset_version": out.dataset_version,
            "update_strategy": revision.update_strategy,
            "unique_key": revision.unique_key,
            "columns": out.columns,
            "storage_ref": grant.under(PLACEHOLDER).storage_ref,
        }
        for out, grant in zip(revision.outputs, writes, strict=True)
    ]


def _render_json(value: object) -> orjson.Fragment:
    # The standard library, not orjson: user configs may hold integers of any size.
    return orjson.Fragment(json.dumps(value, allow_nan=False).encode())


def _output_prefix(out: RevisionOutput) -> str:
    if out.columns is not None:
        return buffer_prefix(out.dataset_uuid)
    return generation_prefix(out.dataset_uuid, out.dataset_version)


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
    return {**scope.model_dump(), "filter": _render_json(scope.filter)}


def _list_inputs(common: _RevisionParts, pins: str | None) -> list[dict[str, Any]]:
    by_input: dict[int, tuple[str, list[dict[str, Any]]]] = {}
    for index, version, key, start, end, ref in orjson.loads(pins) if pins else ():
        _, partitions = by_input.setdefault(index, (version, []))
        if key is not None:
            partitions.append(
                {"partition_key": key, "start": start, "end": end, "storage_ref": ref}
            )
    return [
        {
            "input_index": item.input_index,
            "name": item.name,
            "dataset_uuid": item.dataset_uuid,
            "dataset_version": by_input[item.input_index][0],
            "where": where,
            "partitions": by_input[item.input_index][1],
        }
        for item, where in zip(common.revision.inputs, common.wheres, strict=True)
    ]
