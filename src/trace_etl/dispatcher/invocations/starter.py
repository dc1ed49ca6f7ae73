"""Lease waiting tasks of Lambda runtimes, as many as these may run at once, and request invocations."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

import orjson
import structlog

from trace_etl.api.task.invocation import Invocation
from trace_etl.api.task.lifecycle import Claimed
from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.invocations.invoker import LocalInvoker
from trace_etl.dispatcher.task_api.claims import claim_ready
from trace_etl.dispatcher.task_api.payloads import Payloads
from trace_etl.dispatcher.wake_events import WakeEvents
from trace_etl.model.errors import Unavailable
from trace_etl.state.db.pool import Pool, transaction
from trace_etl.state.routing.outbox import LeasedRow
from trace_etl.state.tasks import claims, invocations
from trace_etl.state.tasks.claims import ClaimedTask

_log = structlog.stdlib.get_logger()


@dataclass(frozen=True)
class Invocations:
    """Starts tasks of Lambda runtimes. Without an invoker, they wait."""

    pool: Pool
    payloads: Payloads
    invoker: LocalInvoker | None
    slots: Mapping[str, int]
    """The tasks of each Lambda runtime that run at once, over all replicas."""
    wake: WakeEvents

    async def start_once(self) -> int:
        """Lease as many waiting tasks as there are free slots. Safe on every replica at once."""
        if self.invoker is None:
            return 0
        self.wake.invocations_wait.clear()
        return sum([await self._start(runtime, slots) for runtime, slots in self.slots.items()])

    async def _start(self, runtime: str, slots: int) -> int:
        assert self.invoker
        async with self.pool.connection() as conn:
            if not await invocations.is_any_queued(conn, runtime):
                return 0
        try:
            worker_id = await self.invoker.identify()
        except Unavailable as error:  # lease nothing while no worker answers
            _log.warning("invoker_unavailable", runtime=runtime, error=error.detail)
            return 0
        async with transaction(self.pool) as conn:
            free = slots - await invocations.lock_running(conn, runtime)
            if free <= 0:
                self.wake.invocations_wait.set()
                return 0
            claimed = await claim_ready(conn, runtime, [(worker_id, uuid4()) for _ in range(free)])
            await invocations.request(conn, runtime, claimed)
        metrics.count_started(len(claimed))
        self.wake.outbox.set()
        if len(claimed) == free:
            self.wake.invocations_wait.set()
        return len(claimed)

    async def perform(self, row: LeasedRow) -> None:
        """Invoke the function of a leased task. Does nothing if that attempt has ended."""
        if self.invoker is None:
            raise Unavailable("no invoker is configured; set TRACE_INVOKER_SOCKET")
        lease_token = invocations.leased_by(row)
        async with self.pool.connection() as conn:
            running = await claims.find_running(conn, [lease_token])
        for task in running:
            await self.invoker.invoke(row.target, await self._make_payload(task))
            _log.info("function_invoked", task_id=str(task.task_id), attempt=task.attempt)

    async def _make_payload(self, task: ClaimedTask) -> bytes:
        [answer] = await self.payloads.claimed([task])
        claimed = Claimed.model_validate(orjson.loads(answer))
        return Invocation.of(claimed, task.org_id).model_dump_json().encode()
