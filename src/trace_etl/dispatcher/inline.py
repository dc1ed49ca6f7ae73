"""`runtime: dispatcher`: small control-plane jobs, run in process with the same lifecycle rows."""

import hashlib
from dataclasses import dataclass
from uuid import UUID, uuid4

import structlog

from trace_etl.dispatcher.payloads import Payloads
from trace_etl.model.errors import Fault, Invalid, TraceError
from trace_etl.model.task import Fence
from trace_etl.plan.operators import SplitConfig
from trace_etl.plan.ranges import split
from trace_etl.plan.retry import Backoff
from trace_etl.state import claims, completions
from trace_etl.state.claims import ClaimedTask, ClaimRequest
from trace_etl.state.completions import Completion, NewEvent
from trace_etl.state.pool import Pool, transaction
from trace_etl.state.revisions import Revision

_log = structlog.stdlib.get_logger()
_MOST_PARTITIONS = 100_000


@dataclass(frozen=True)
class InlineRunner:
    pool: Pool
    payloads: Payloads
    worker_id: str
    retry: Backoff

    async def run(self, task_id: UUID) -> None:
        """Claim, run and complete in one transaction: a crash leaves the task as it was."""
        async with transaction(self.pool) as conn:
            wish = ClaimRequest(task_id, self.worker_id, uuid4())
            won = await claims.claim(conn, [wish]) or await claims.claim_capped(conn, [wish])
            if not won:
                return
            task = won[wish.lease_token]
            revision = await self.payloads.revision(conn, task.revision_id)
            completion = self._completion(task, revision)
            await completions.complete(conn, [completion])
        _log.info(
            "inline_task_done",
            task_id=str(task_id),
            status=completion.status,
            events=len(completion.events),
        )

    def _completion(self, task: ClaimedTask, revision: Revision) -> Completion:
        fence = Fence(task.task_id, task.attempt, task.lease_token)
        digest = hashlib.sha256(task.lease_token.bytes).digest()
        try:
            events = run_operator(task, revision)
            return Completion(fence, "Completed", digest, events=events)
        except TraceError as error:
            wait = self.retry.after(task.attempt) if error.retryable else None
            return Completion(fence, "Failed", digest, error.code, error.detail, wait)


def run_operator(task: ClaimedTask, revision: Revision) -> list[NewEvent]:
    """The events an in-process operator emits. Raises TraceError."""
    if revision.operator != "range_splitter":
        raise Invalid([Fault("operator", f"{revision.operator} does not run in the Dispatcher")])
    if task.range_start is None or task.range_end is None:
        raise Invalid([Fault("scope", "range_splitter needs a block range to split")])
    size = SplitConfig.model_validate(revision.config).size
    count = (task.range_end - task.range_start) // size + 1
    if count > _MOST_PARTITIONS:
        raise Invalid([Fault("config.size", f"{count} partitions are too many; split larger")])
    out = revision.outputs[0]
    return [
        NewEvent(out.dataset_uuid, out.dataset_version, f"p:{a}-{b}", f"{a}-{b}", a, b, None)
        for a, b in split(task.range_start, task.range_end, size)
    ]
