"""From a claimed row to what its worker is handed: payload and token.

Every claim passes here, so what a job's tasks have in common is rendered once, and the rest is
built as plain dictionaries in the shape of `wire.TaskPayload`, which the tests hold it to.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from trace_etl.dag.operators import OPERATORS
from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.task_api.permissions import HOLE, Form, Grant, Opens, Scope
from trace_etl.dispatcher.task_api.tokens import TaskTokens
from trace_etl.model.storage import attempt_prefix, buffer_place, generation_place
from trace_etl.state.catalog import revisions
from trace_etl.state.catalog.revisions import Revision, RevisionOutput
from trace_etl.state.db.pool import BROKEN, Conn, Pool
from trace_etl.state.partitions import invalidations
from trace_etl.state.routing import cursors
from trace_etl.state.tasks.claims import ClaimedTask

Payload = dict[str, Any]
_TRIES = 4
_REMEMBERED = 1024  # sets of pins
_SHORT = 4096  # characters of pins that are worth remembering


@dataclass(frozen=True)
class _Common:
    """What all tasks of a revision are handed alike."""

    revision: Revision
    job: orjson.Fragment
    config: orjson.Fragment
    wheres: tuple[orjson.Fragment, ...]
    writes: list[Grant]
    """Where the outputs of all tasks are, each task's under a prefix of its own."""
    outputs: Form
    may_doubt: bool


class _Told(NamedTuple):
    """What a claimed task is told, and what its token opens."""

    own: str
    """The attempt's own part of every prefix that it writes under."""
    opens: Opens
    payload: Payload


class _Pinned(NamedTuple):
    """What all tasks of a revision that read the same are handed alike."""

    inputs: orjson.Fragment
    opens: Opens


class Payloads:
    """Builds payloads. Revisions never change, so each is read once."""

    def __init__(self, pool: Pool, tokens: TaskTokens, cfg: DispatcherSettings) -> None:
        self._pool = pool
        self._tokens = tokens
        self._place = {"scheme": cfg.object_scheme, "bucket": cfg.object_bucket}
        self._grace = int(cfg.token_grace.total_seconds())
        self._life_most = int(cfg.token_life_most.total_seconds())
        self._known: dict[UUID, _Common] = {}
        self._pinned_before = lru_cache(_REMEMBERED)(self._pin)

    async def revision(self, conn: Conn, revision_id: UUID) -> Revision:
        """The definition a task was created from."""
        return (await self._common(conn, revision_id)).revision

    async def claimed(self, tasks: list[ClaimedTask]) -> list[bytes]:
        """The answers to won claims (`wire.Claimed`)."""
        told = [self._known_of(task) or await self._read_of(task) for task in tasks]
        kid = self._tokens.kid()  # nothing is awaited from here on: the key stays
        return [self._claimed(task, about, kid) for task, about in zip(tasks, told, strict=True)]

    async def payload(self, conn: Conn, task: ClaimedTask) -> Payload:
        """Everything a worker needs (`wire.TaskPayload`), as pinned when its row was read."""
        return (await self._read(conn, task)).payload

    def _known_of(self, task: ClaimedTask) -> _Told | None:
        """What most tasks need is on the row and in memory."""
        common = self._known.get(task.revision_id)
        if common is None or task.cursor_value is not None or task.invalidation_id is not None:
            return None
        return self._told(task, common, None, None)

    async def _read_of(self, task: ClaimedTask) -> _Told:
        for left in reversed(range(_TRIES)):  # the claim is committed: it must not be given up
            try:
                async with self._pool.connection() as conn:
                    return await self._read(conn, task)
            except BROKEN:
                if not left:
                    raise
        raise AssertionError("unreachable")

    async def _read(self, conn: Conn, task: ClaimedTask) -> _Told:
        common = await self._common(conn, task.revision_id)
        after = await _after(conn, task, common.revision)
        return self._told(task, common, after, await _invalid(conn, task))

    async def _common(self, conn: Conn, revision_id: UUID) -> _Common:
        known = self._known.get(revision_id)
        if known is None:
            known = self._rendered(await revisions.load(conn, revision_id))
            self._known[revision_id] = known
        return known

    def _claimed(self, task: ClaimedTask, told: _Told, kid: str) -> bytes:
        scope = Scope(task.org_id, task.task_id, task.attempt, told.own, told.opens)
        life = min(task.timeout_seconds + self._grace, self._life_most)
        return orjson.dumps(
            {
                "status": "Claimed",
                "attempt": task.attempt,
                "lease_token": task.lease_token,
                "lease_expires_at": task.lease_expires_at,
                "capability_token": self._tokens.mint(scope, life, kid),
                "task": told.payload,
            },
            option=orjson.OPT_UTC_Z,
        )

    def _told(
        self, task: ClaimedTask, common: _Common, after: int | None, invalid: dict[str, Any] | None
    ) -> _Told:
        own = attempt_prefix("", task.task_id, task.attempt)
        pinned = self._pinned(common, task.pins)
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
            "outputs": common.outputs.fill(own),
            "timeout_seconds": task.timeout_seconds,
            "heartbeat_seconds": max(0.05, task.lease_seconds / 4),
        }
        return _Told(own, pinned.opens, payload)

    # --- what is rendered once --------------------------------------------------------------

    def _rendered(self, revision: Revision) -> _Common:
        operator = OPERATORS.get(revision.operator)
        writes = [
            Grant(out.dataset_uuid, out.dataset_version, self._ref(_place(out)))
            for out in revision.outputs
        ]
        return _Common(
            revision=revision,
            job=_fragment({"dag_name": revision.dag_name, "name": revision.job_name}),
            config=_fragment(revision.config),
            wheres=tuple(_fragment(item.where) for item in revision.inputs),
            writes=writes,
            outputs=Form(_outputs(revision, writes)),
            may_doubt=operator is not None and operator.doubts_inputs,
        )

    def _pinned(self, common: _Common, pins: str | None) -> _Pinned:
        pin = self._pinned_before if len(pins or "") <= _SHORT else self._pin
        return pin(common.revision.revision_id, pins)

    def _pin(self, revision_id: UUID, pins: str | None) -> _Pinned:
        common = self._known[revision_id]
        inputs = _inputs(common, pins)
        # A generation's own prefix covers all its partitions: the token stays small.
        reads = [
            Grant(one, UUID(version), self._ref(generation_place(one, version)))
            for one, version in ((i["dataset_uuid"], i["dataset_version"]) for i in inputs)
        ]
        opens = Opens(reads, common.writes, may_doubt=common.may_doubt)
        return _Pinned(orjson.Fragment(orjson.dumps(inputs)), opens)

    def _ref(self, prefix: str) -> dict[str, str]:
        return {**self._place, "prefix": prefix, "glob": "*.parquet"}


def _outputs(revision: Revision, writes: list[Grant]) -> list[dict[str, Any]]:
    return [
        {
            "output_index": out.output_index,
            "name": out.name,
            "dataset_uuid": out.dataset_uuid,
            "dataset_version": out.dataset_version,
            "update_strategy": revision.update_strategy,
            "unique_key": revision.unique_key,
            "columns": out.columns,
            "storage_ref": grant.under(HOLE).storage_ref,
        }
        for out, grant in zip(revision.outputs, writes, strict=True)
    ]


def _fragment(value: object) -> orjson.Fragment:
    # By the standard library: what people write may hold whole numbers of any size.
    return orjson.Fragment(json.dumps(value, allow_nan=False).encode())


def _place(out: RevisionOutput) -> str:
    if out.columns is not None:
        return buffer_place(out.dataset_uuid)
    return generation_place(out.dataset_uuid, out.dataset_version)


async def _after(conn: Conn, task: ClaimedTask, revision: Revision) -> int | None:
    # A task that makes something good reads its scope again, whatever was read since.
    if task.cursor_value is None or task.invalidation_id is not None:
        return None
    if revision.execution_strategy != "PerUpdate":
        return None
    return await cursors.reached(conn, task.task_id)


async def _invalid(conn: Conn, task: ClaimedTask) -> dict[str, Any] | None:
    if task.invalidation_id is None:
        return None
    found = (await invalidations.by_ids(conn, [task.invalidation_id])).get(task.invalidation_id)
    if found is None:  # made good long ago, and forgotten
        return None
    return {
        "invalidation_id": found.invalidation_id,
        "dataset_uuid": found.dataset_uuid,
        "dataset_version": found.dataset_version,
        "kind": found.kind,
        "partition_key": found.partition_key,
        "start": found.range_start,
        "end": found.range_end,
        "filter": _fragment(found.filter),
        "reason": found.reason,
    }


def _inputs(common: _Common, pins: str | None) -> list[dict[str, Any]]:
    found: dict[int, tuple[str, list[dict[str, Any]]]] = {}
    for index, version, key, start, end, ref in orjson.loads(pins) if pins else ():
        _, partitions = found.setdefault(index, (version, []))
        if key is not None:
            partitions.append(
                {"partition_key": key, "start": start, "end": end, "storage_ref": ref}
            )
    return [
        {
            "input_index": item.input_index,
            "name": item.name,
            "dataset_uuid": item.dataset_uuid,
            "dataset_version": found[item.input_index][0],
            "where": where,
            "partitions": found[item.input_index][1],
        }
        for item, where in zip(common.revision.inputs, common.wheres, strict=True)
    ]
