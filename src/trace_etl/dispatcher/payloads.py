"""From a claimed row to what its worker is handed: payload and token."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.tokens import Grant, Scope, TaskTokens
from trace_etl.model.storage import attempt_prefix, buffer_prefix
from trace_etl.plan.operators import OPERATORS
from trace_etl.state import cursors, invalidations, revisions
from trace_etl.state.claims import ClaimedTask
from trace_etl.state.pool import Conn
from trace_etl.state.revisions import Revision, RevisionInput, RevisionOutput
from trace_etl.wire.task import (
    Claimed,
    InputPartition,
    Invalid,
    JobRef,
    Storage,
    TaskInput,
    TaskOutput,
    TaskPayload,
)
from trace_etl.wire.task import Scope as TaskScope


class Payloads:
    """Builds payloads. Revisions never change, so each is read once."""

    def __init__(self, tokens: TaskTokens, cfg: DispatcherSettings) -> None:
        self._tokens = tokens
        self._cfg = cfg
        self._revisions: dict[UUID, Revision] = {}

    async def revision(self, conn: Conn, revision_id: UUID) -> Revision:
        """The definition a task was created from."""
        known = self._revisions.get(revision_id)
        if known is None:
            known = self._revisions[revision_id] = await revisions.load(conn, revision_id)
        return known

    async def claimed(self, conn: Conn, tasks: list[ClaimedTask]) -> list[Claimed]:
        """The answers to won claims."""
        return [self._claimed(task, await self.payload(conn, task)) for task in tasks]

    def _claimed(self, task: ClaimedTask, payload: TaskPayload) -> Claimed:
        return Claimed(
            attempt=task.attempt,
            lease_token=task.lease_token,
            lease_expires_at=task.lease_expires_at,
            capability_token=self._token(task, payload),
            task=payload,
        )

    async def payload(self, conn: Conn, task: ClaimedTask) -> TaskPayload:
        """Everything a worker needs, as pinned when its task's row was read."""
        revision = await self.revision(conn, task.revision_id)
        return TaskPayload(
            task_id=task.task_id,
            attempt=task.attempt,
            job=JobRef(dag_name=revision.dag_name, name=revision.job_name),
            operator=revision.operator,
            config=revision.config,
            scope=TaskScope(
                partition_key=task.partition_key,
                start=task.range_start,
                end=task.range_end,
                cursor=task.cursor_value,
                after=await _after(conn, task, revision),
            ),
            invalidation=await _invalid(conn, task),
            inputs=_inputs(revision, task.pins or []),
            outputs=[self._output(task, revision, n) for n in range(len(revision.outputs))],
            timeout_seconds=task.timeout_seconds,
            heartbeat_seconds=max(0.05, task.lease_seconds / 4),
        )

    def _output(self, task: ClaimedTask, revision: Revision, n: int) -> TaskOutput:
        out = revision.outputs[n]
        prefix = _prefix(task, out)
        return TaskOutput(
            output_index=out.output_index,
            name=out.name,
            dataset_uuid=out.dataset_uuid,
            dataset_version=out.dataset_version,
            update_strategy=revision.update_strategy,
            unique_key=revision.unique_key,
            columns=out.columns,
            storage_ref=self._storage(prefix),
        )

    def _storage(self, prefix: str) -> Storage:
        return Storage.model_construct(None, **self._ref(prefix))

    def _ref(self, prefix: str) -> dict[str, str]:
        scheme, bucket = self._cfg.object_scheme, self._cfg.object_bucket
        return {"scheme": scheme, "bucket": bucket, "prefix": prefix, "glob": "*.parquet"}

    def _token(self, task: ClaimedTask, payload: TaskPayload) -> str:
        # A generation's own prefix covers all its partitions: the token stays small.
        reads = [
            Grant(
                i.dataset_uuid,
                i.dataset_version,
                self._ref(f"cold/datasets/{i.dataset_uuid}/{i.dataset_version}/"),
            )
            for i in payload.inputs
        ]
        writes = [
            Grant(o.dataset_uuid, o.dataset_version, self._ref(o.storage_ref.prefix))
            for o in payload.outputs
        ]
        may_doubt = payload.operator in OPERATORS and OPERATORS[payload.operator].doubts_inputs
        scope = Scope(task.org_id, task.task_id, task.attempt, reads, writes, may_doubt)
        life = task.timeout_seconds + int(self._cfg.token_grace.total_seconds())
        return self._tokens.mint(scope, min(life, int(self._cfg.token_life_most.total_seconds())))


def _prefix(task: ClaimedTask, out: RevisionOutput) -> str:
    if out.columns is not None:
        return buffer_prefix(out.dataset_uuid, task.task_id, task.attempt)
    return attempt_prefix(out.dataset_uuid, out.dataset_version, task.task_id, task.attempt)


async def _after(conn: Conn, task: ClaimedTask, revision: Revision) -> int | None:
    # A task that makes something good reads its scope again, whatever was read since.
    if task.cursor_value is None or task.invalidation_id is not None:
        return None
    if revision.execution_strategy != "PerUpdate":
        return None
    return await cursors.reached(conn, task.task_id)


async def _invalid(conn: Conn, task: ClaimedTask) -> Invalid | None:
    if task.invalidation_id is None:
        return None
    found = (await invalidations.by_ids(conn, [task.invalidation_id])).get(task.invalidation_id)
    if found is None:  # made good long ago, and forgotten
        return None
    return Invalid.model_validate(
        {**asdict(found), "start": found.range_start, "end": found.range_end}
    )


def _inputs(revision: Revision, pins: list[list[Any]]) -> list[TaskInput]:
    found: dict[int, tuple[str, list[InputPartition]]] = {}
    for index, version, key, start, end, ref in pins:
        _, partitions = found.setdefault(index, (version, []))
        if key is not None:
            storage = Storage.model_validate(ref)
            partitions.append(
                InputPartition(partition_key=key, start=start, end=end, storage_ref=storage)
            )
    return [_input(item, *found[item.input_index]) for item in revision.inputs]


def _input(item: RevisionInput, version: str, partitions: list[InputPartition]) -> TaskInput:
    return TaskInput(
        input_index=item.input_index,
        name=item.name,
        dataset_uuid=item.dataset_uuid,
        dataset_version=UUID(version),
        where=item.where,
        partitions=partitions,
    )
