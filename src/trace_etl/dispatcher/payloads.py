"""From a claimed row to what its worker is handed: payload and token."""

from uuid import UUID

from trace_etl.dispatcher.settings import DispatcherSettings
from trace_etl.dispatcher.tokens import Grant, Scope, TaskTokens
from trace_etl.model.storage import attempt_prefix
from trace_etl.state import partitions, revisions
from trace_etl.state.claims import ClaimedTask
from trace_etl.state.pool import Conn
from trace_etl.state.revisions import Revision, RevisionInput
from trace_etl.wire.task import (
    Claimed,
    InputPartition,
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
        payloads = await self.payloads(conn, tasks)
        return [self._claimed(*pair) for pair in zip(tasks, payloads, strict=True)]

    def _claimed(self, task: ClaimedTask, payload: TaskPayload) -> Claimed:
        return Claimed(
            attempt=task.attempt,
            lease_token=task.lease_token,
            lease_expires_at=task.lease_expires_at,
            capability_token=self._token(task, payload),
            task=payload,
        )

    async def payloads(self, conn: Conn, tasks: list[ClaimedTask]) -> list[TaskPayload]:
        """Everything the workers need, pinned now, with one look at the registry for all."""
        known = [(task, await self.revision(conn, task.revision_id)) for task in tasks]
        wanted = [(task, i) for task, revision in known for i in revision.inputs]
        pinned = await partitions.pin(conn, [_pin(*w) for w in wanted]) if wanted else []
        inputs: dict[UUID, list[TaskInput]] = {task.task_id: [] for task in tasks}
        for (task, item), found in zip(wanted, pinned, strict=True):
            inputs[task.task_id].append(_input(item, found))
        return [self._payload(task, revision, inputs[task.task_id]) for task, revision in known]

    def _payload(
        self, task: ClaimedTask, revision: Revision, inputs: list[TaskInput]
    ) -> TaskPayload:
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
            ),
            inputs=inputs,
            outputs=[self._output(task, revision, n) for n in range(len(revision.outputs))],
            timeout_seconds=task.timeout_seconds,
            heartbeat_seconds=max(0.05, task.lease_seconds / 4),
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
        scope = Scope(task.org_id, task.task_id, task.attempt, reads, writes)
        life = task.timeout_seconds + int(self._cfg.token_grace.total_seconds())
        return self._tokens.mint(scope, min(life, int(self._cfg.token_life_most.total_seconds())))


def _pin(task: ClaimedTask, item: RevisionInput) -> partitions.Pin:
    # An edge inside the DAG reads the generation its revision was made for. One across DAGs reads
    # what the event was about, if it woke the task, and else what is current.
    woke = item.dataset_uuid == task.dataset_uuid
    version = item.dataset_version or (task.dataset_version if woke else None)
    return partitions.Pin(item.dataset_uuid, version, task.range_start, task.range_end)


def _input(item: RevisionInput, found: partitions.Pinned) -> TaskInput:
    return TaskInput(
        input_index=item.input_index,
        name=item.name,
        dataset_uuid=item.dataset_uuid,
        dataset_version=found.dataset_version,
        where=item.where,
        partitions=[
            InputPartition(
                partition_key=key, start=start, end=end, storage_ref=Storage.model_validate(ref)
            )
            for key, start, end, ref in found.partitions
        ],
    )
