"""Claim one task by id, or as many ready tasks as a worker has slots for."""

import asyncio
from dataclasses import dataclass
from uuid import UUID, uuid4

from trace_etl.api.task import lifecycle as bodies
from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.task_api.batch_writer import PORTION, BatchWriter
from trace_etl.dispatcher.task_api.payloads import Payloads
from trace_etl.model.task import NotClaimedReason
from trace_etl.state.db.pool import Conn, ReusedConnections
from trace_etl.state.tasks import capped_claims, claims, ready_claims
from trace_etl.state.tasks.claims import ClaimedTask, ClaimRequest


@dataclass(eq=False)
class _ReadyRequest:
    """A claim request for any ready tasks of a runtime, with one generated lease token per slot."""

    runtime: str
    worker_id: str
    lease_tokens: list[UUID]
    tried: bool = False


class Claims:
    """Claim tasks (`Queued → Running`), many requests in one commit, each with its own answer."""

    def __init__(self, writer_connections: ReusedConnections, payloads: Payloads) -> None:
        self._payloads = payloads
        self._claims = BatchWriter("claim", writer_connections, self._claim_batch, portion=PORTION)
        self._ready_claims = BatchWriter(
            "claim_many",
            writer_connections,
            self._claim_many_batch,
            weigh=lambda request: len(request.lease_tokens),
            portion=PORTION,
        )

    async def claim(self, body: bodies.Claim) -> bytes:
        """Claim one task. Returns the JSON answer, claimed or not."""
        request = ClaimRequest(body.task_id, body.worker_id, uuid4())
        answer = await self._claims.submit(request)
        return answer if isinstance(answer, bytes) else (await self._payloads.claimed([answer]))[0]

    async def _claim_batch(
        self, conn: Conn, requests: list[ClaimRequest]
    ) -> list[ClaimedTask | bytes | Exception]:
        claimed = await claims.claim(conn, requests)
        refused = [r for r in requests if r.lease_token not in claimed]
        states = await claims.claim_states(conn, [r.task_id for r in refused]) if refused else {}
        if capped := [r for r in refused if _is_capped(states.get(r.task_id))]:
            async with conn.transaction():
                claimed |= await capped_claims.claim_capped(conn, capped)
            states |= await claims.claim_states(conn, [r.task_id for r in capped])
        for request in refused:
            state = states.get(request.task_id)
            if state is not None and state.lease_token == request.lease_token:
                # An earlier try of the same claim was committed, but the answer was lost.
                claimed |= {
                    task.lease_token: task for task in await claims.find_claimed(conn, request)
                }
        metrics.count_started(len(claimed))
        return [
            claimed.get(r.lease_token) or _refuse_claim(states.get(r.task_id)) for r in requests
        ]

    async def claim_many(self, body: bodies.ClaimMany) -> bytes:
        """Claim ready tasks of a runtime, oldest first, or tasks by id. Returns the JSON answer."""
        if body.task_ids is not None:
            claimed = await self._claim_by_ids(body.task_ids, body.worker_id)
        else:
            tokens = [uuid4() for _ in range(body.max_tasks)]
            request = _ReadyRequest(body.runtime or "", body.worker_id, tokens)
            claimed = await self._ready_claims.submit(request)
        return b'{"claimed":[%b]}' % b",".join(await self._payloads.claimed(claimed))

    async def _claim_by_ids(self, task_ids: list[UUID], worker_id: str) -> list[ClaimedTask]:
        # Submitted together, so one commit has all of them.
        requests = [ClaimRequest(task_id, worker_id, uuid4()) for task_id in set(task_ids)]
        answers = await asyncio.gather(*(self._claims.enter(request) for request in requests))
        return [answer for answer in answers if not isinstance(answer, bytes)]

    async def _claim_many_batch(
        self, conn: Conn, requests: list[_ReadyRequest]
    ) -> list[list[ClaimedTask] | Exception]:
        claimed = await self._find_earlier_claims(conn, requests)
        earlier_count = len(claimed)
        for runtime in {r.runtime for r in requests}:
            taken = {task.lease_token for task in claimed}
            runtime_requests = [r for r in requests if r.runtime == runtime]
            slots = [
                (r.worker_id, t) for r in runtime_requests for t in r.lease_tokens if t not in taken
            ]
            if slots:
                claimed += await claim_ready(conn, runtime, slots)
        metrics.count_started(len(claimed) - earlier_count)
        tasks = {task.lease_token: task for task in claimed}
        return [[tasks[t] for t in r.lease_tokens if t in tasks] for r in requests]

    async def _find_earlier_claims(
        self, conn: Conn, requests: list[_ReadyRequest]
    ) -> list[ClaimedTask]:
        """Return the tasks that an earlier try of these requests claimed, but whose answer was lost."""
        retried_tokens = [token for r in requests if r.tried for token in r.lease_tokens]
        for request in requests:
            request.tried = True
        return await claims.find_running(conn, retried_tokens) if retried_tokens else []


async def claim_ready(conn: Conn, runtime: str, slots: list[tuple[str, UUID]]) -> list[ClaimedTask]:
    """Start ready tasks of a runtime, oldest first, one for each (worker, lease token)."""
    claimed = await ready_claims.claim_ready(conn, runtime, slots)
    taken = {task.lease_token for task in claimed}
    free_slots = [slot for slot in slots if slot[1] not in taken]
    return claimed + (await _claim_capped(conn, runtime, free_slots) if free_slots else [])


async def _claim_capped(
    conn: Conn, runtime: str, slots: list[tuple[str, UUID]]
) -> list[ClaimedTask]:
    ready = await capped_claims.find_ready(conn, runtime, len(slots))
    if not ready:
        return []
    requests = [
        ClaimRequest(task_id, worker, token)
        for task_id, (worker, token) in zip(ready, slots, strict=False)
    ]
    async with conn.transaction():
        return list((await capped_claims.claim_capped(conn, requests)).values())


def _refuse_claim(state: claims.ClaimState | None) -> bytes:
    reason = state.reason() if state else NotClaimedReason.NOT_FOUND
    return bodies.NotClaimed(reason=reason.value).model_dump_json().encode()


def _is_capped(state: claims.ClaimState | None) -> bool:
    return state is not None and state.capped and state.status == "Queued"
