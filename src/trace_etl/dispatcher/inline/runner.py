"""Run tasks of `runtime: dispatcher` in process. Their rows in `tasks` change as with any worker."""

import hashlib
from dataclasses import dataclass
from uuid import UUID, uuid4

import structlog

from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.inline.operators import InlineResult, run_operator
from trace_etl.dispatcher.task_api.payloads import Payloads
from trace_etl.model.errors import TraceError
from trace_etl.model.task import Fence
from trace_etl.policy.retry import Backoff, retry_delay
from trace_etl.state.db.pool import Conn, Pool, transaction
from trace_etl.state.invalidations import invalidations
from trace_etl.state.tasks import capped_claims, claims, completions
from trace_etl.state.tasks.claims import ClaimedTask, ClaimRequest
from trace_etl.state.tasks.completions import Completion

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class InlineRunner:
    pool: Pool
    payloads: Payloads
    worker_id: str
    retry: Backoff

    async def run(self, task_id: UUID) -> None:
        """Claim, run and complete in one transaction: a crash leaves the task unchanged."""
        async with transaction(self.pool) as conn:
            request = ClaimRequest(task_id, self.worker_id, uuid4())
            claimed = await claims.claim(conn, [request])
            claimed = claimed or await capped_claims.claim_capped(conn, [request])
            if not claimed:
                return
            task = claimed[request.lease_token]
            completion, result = await self._run_operator(conn, task)
            await completions.complete(conn, [completion])
            if result.invalidations:
                by = f"task:{task_id}"
                reported, fence = result.invalidations, completion.fence
                await invalidations.record(conn, task.org_id, reported, made_by=by, fence=fence)
        metrics.count_transitions(["Running", completion.status])
        _log.info(
            "inline_task_done",
            task_id=str(task_id),
            status=completion.status,
            events=len(completion.events),
            invalidations=len(result.invalidations),
        )

    async def _run_operator(self, conn: Conn, task: ClaimedTask) -> tuple[Completion, InlineResult]:
        fence = Fence(task.task_id, task.attempt, task.lease_token)
        digest = hashlib.sha256(task.lease_token.bytes).digest()
        revision = await self.payloads.revision(conn, task.revision_id)
        try:
            async with conn.transaction():  # on failure, undo what the operator wrote
                result = await run_operator(conn, task, revision)
            return Completion(fence, "Completed", digest, events=result.events), result
        except TraceError as error:
            delay = retry_delay(task.attempt, self.retry, retryable=error.retryable)
            failed = Completion(fence, "Failed", digest, error.code, error.detail, delay)
            return failed, InlineResult()
