"""From a claimed row to what its worker is handed: payload and token."""

from uuid import UUID

from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.tokens import Grant, TaskTokens, claims_of
from trace_etl.model.storage import attempt_prefix
from trace_etl.model.task import Fence
from trace_etl.state import partitions, revisions
from trace_etl.state.claims import ClaimedTask
from trace_etl.state.pool import Conn
from trace_etl.state.revisions import Revision, RevisionInput
from trace_etl.wire.task import (
    Claimed,
    InputPartition,
    JobRef,
    Scope,
    Storage,
    TaskInput,
    TaskOutput,
    TaskPayload,
)


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

    async def claimed(self, conn: Conn, task: ClaimedTask) -> Claimed:
        """The answer to a won claim."""
        payload = await self.payload(conn, task)
        return Claimed(
            attempt=task.attempt,
            lease_token=task.lease_token,
            lease_expires_at=task.lease_expires_at,
            capability_token=self._token(task, payload),
            task=payload,
        )

    async def payload(self, conn: Conn, task: ClaimedTask) -> TaskPayload:
        """Everything the worker needs, pinned now."""
        revision = await self.revision(conn, task.revision_id)
        return TaskPayload(
            task_id=task.task_id,
            attempt=task.attempt,
            job=JobRef(dag_name=revision.dag_name, name=revision.job_name),
            operator=revision.operator,
            config=revision.config,
            scope=Scope(
                partition_key=task.partition_key,
                start=task.range_start,
                end=task.range_end,
                cursor=task.cursor_value,
            ),
            inputs=await self._inputs(conn, task, revision),
            outputs=[self._output(task, revision, n) for n in range(len(revision.outputs))],
            timeout_seconds=task.timeout_seconds,
            heartbeat_seconds=max(0.05, task.lease_seconds / 4),
        )

    async def _inputs(self, conn: Conn, task: ClaimedTask, revision: Revision) -> list[TaskInput]:
        if not revision.inputs:
            return []
        current = await revisions.current_versions(conn, [i.dataset_uuid for i in revision.inputs])
        return [
            await self._input(conn, task, item, current[item.dataset_uuid])
            for item in revision.inputs
        ]

    async def _input(
        self, conn: Conn, task: ClaimedTask, item: RevisionInput, current: UUID
    ) -> TaskInput:
        triggered = item.dataset_uuid == task.dataset_uuid and task.dataset_version is not None
        version = task.dataset_version if triggered and task.dataset_version else current
        found = await partitions.pinned(conn, version, task.range_start, task.range_end)
        return TaskInput(
            input_index=item.input_index,
            name=item.name,
            dataset_uuid=item.dataset_uuid,
            dataset_version=version,
            where=item.where,
            partitions=[
                InputPartition(
                    partition_key=p.partition_key,
                    start=p.range_start,
                    end=p.range_end,
                    storage_ref=Storage.model_validate(p.storage_ref),
                )
                for p in found
            ],
        )

    def _output(self, task: ClaimedTask, revision: Revision, n: int) -> TaskOutput:
        out = revision.outputs[n]
        prefix = attempt_prefix(out.dataset_uuid, out.dataset_version, task.task_id, task.attempt)
        return TaskOutput(
            output_index=out.output_index,
            name=out.name,
            dataset_uuid=out.dataset_uuid,
            dataset_version=out.dataset_version,
            update_strategy=revision.update_strategy,
            storage_ref=self._storage(prefix),
        )

    def _storage(self, prefix: str) -> Storage:
        return Storage.model_construct(
            scheme=self._cfg.object_scheme,
            bucket=self._cfg.object_bucket,
            prefix=prefix,
            glob="*.parquet",
        )

    def _token(self, task: ClaimedTask, payload: TaskPayload) -> str:
        # A generation's own prefix covers all its partitions: the token stays small.
        reads = [
            Grant(
                i.dataset_uuid,
                i.dataset_version,
                self._storage(f"cold/datasets/{i.dataset_uuid}/{i.dataset_version}/").model_dump(),
            )
            for i in payload.inputs
        ]
        writes = [
            Grant(o.dataset_uuid, o.dataset_version, o.storage_ref.model_dump())
            for o in payload.outputs
        ]
        scope = claims_of(
            task.org_id,
            Fence(task.task_id, task.attempt, task.lease_token),
            [*reads, *writes],
            [f"s3://{g.storage_ref['bucket']}/{g.storage_ref['prefix']}" for g in reads],
            [f"s3://{g.storage_ref['bucket']}/{g.storage_ref['prefix']}" for g in writes],
        )
        life = task.timeout_seconds + int(self._cfg.token_grace.total_seconds())
        return self._tokens.mint(scope, min(life, int(self._cfg.token_life_most.total_seconds())))
