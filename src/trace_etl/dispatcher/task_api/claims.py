"""Claiming: one task by its id, or as many as a worker has room for."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from trace_etl.api.task import lifecycle as wire
from trace_etl.dispatcher import metrics
from trace_etl.dispatcher.task_api.batch_writer import PORTION, BatchWriter
from trace_etl.dispatcher.task_api.payloads import Payloads
from trace_etl.model.task import NotClaimedReason
from trace_etl.state.db.pool import Conn, KeptConnections
from trace_etl.state.tasks import claims
from trace_etl.state.tasks.claims import ClaimedTask, ClaimRequest


@dataclass(eq=False)
class _ManyWish:
    """Somebody's wish for any tasks of a runtime. Its leases are drawn before, as for one task."""

    runtime: str
    worker_id: str
    lease_tokens: list[UUID]
    tried: bool = False


class Claiming:
    """`Queued → Running`, many wishes in one commit, each answered for itself."""

    def __init__(self, writer_connections: KeptConnections, payloads: Payloads) -> None:
        self._payloads = payloads
        self._claims = BatchWriter("claim", writer_connections, self._claim_batch, portion=PORTION)
        self._ready_claims = BatchWriter(
            "claim_many", writer_connections, self._claim_many_batch, weigh=_places, portion=PORTION
        )

    async def claim(self, body: wire.Claim) -> bytes:
        """`Queued → Running` for one task, if this caller is the one. Answers in JSON."""
        wish = ClaimRequest(body.task_id, body.worker_id, uuid4())
        won = await self._claims.submit(wish)
        return won if isinstance(won, bytes) else (await self._payloads.claimed([won]))[0]

    async def _claim_batch(
        self, conn: Conn, wishes: list[ClaimRequest]
    ) -> list[ClaimedTask | bytes | Exception]:
        won = await claims.claim(conn, wishes)
        lost = [w for w in wishes if w.lease_token not in won]
        standing = await claims.standing(conn, [w.task_id for w in lost]) if lost else {}
        if capped := [w for w in lost if _is_capped(standing.get(w.task_id))]:
            async with conn.transaction():
                won |= await claims.claim_capped(conn, capped)
            standing |= await claims.standing(conn, [w.task_id for w in capped])
        for wish in lost:
            now = standing.get(wish.task_id)
            if now is not None and now.lease_token == wish.lease_token:
                # An earlier try of this very claim committed, and its answer was lost.
                won |= {task.lease_token: task for task in await claims.held(conn, wish)}
        metrics.started(len(won))
        return [won.get(w.lease_token) or _not_claimed(standing.get(w.task_id)) for w in wishes]

    async def claim_many(self, body: wire.ClaimMany) -> bytes:
        """Claim up to `max_tasks` ready tasks of a runtime, oldest first. Answers in JSON."""
        wish = _ManyWish(body.runtime, body.worker_id, [uuid4() for _ in range(body.max_tasks)])
        won = await self._ready_claims.submit(wish)
        return b'{"claimed":[%b]}' % b",".join(await self._payloads.claimed(won))

    async def _claim_many_batch(
        self, conn: Conn, wishes: list[_ManyWish]
    ) -> list[list[ClaimedTask] | Exception]:
        won = await self._won_before(conn, wishes)
        before = len(won)
        for runtime in {w.runtime for w in wishes}:
            taken = {task.lease_token for task in won}
            mine = [w for w in wishes if w.runtime == runtime]
            places = [(w.worker_id, t) for w in mine for t in w.lease_tokens if t not in taken]
            if places:
                won += await self._claim_ready(conn, runtime, places)
        metrics.started(len(won) - before)
        tasks = {task.lease_token: task for task in won}
        return [[tasks[t] for t in w.lease_tokens if t in tasks] for w in wishes]

    async def _won_before(self, conn: Conn, wishes: list[_ManyWish]) -> list[claims.ClaimedTask]:
        """What an earlier try of these very claims committed before its answer was lost."""
        again = [token for w in wishes if w.tried for token in w.lease_tokens]
        for wish in wishes:
            wish.tried = True
        return await claims.held_by(conn, again) if again else []

    async def _claim_ready(
        self, conn: Conn, runtime: str, places: list[tuple[str, UUID]]
    ) -> list[claims.ClaimedTask]:
        won = await claims.claim_ready(conn, runtime, places)
        taken = {task.lease_token for task in won}
        left = [place for place in places if place[1] not in taken]
        return won + (await self._claim_capped(conn, runtime, left) if left else [])

    async def _claim_capped(
        self, conn: Conn, runtime: str, places: list[tuple[str, UUID]]
    ) -> list[claims.ClaimedTask]:
        ready = await claims.capped_ready(conn, runtime, len(places))
        if not ready:
            return []
        wishes = [
            ClaimRequest(task_id, worker, token)
            for task_id, (worker, token) in zip(ready, places, strict=False)
        ]
        async with conn.transaction():
            return list((await claims.claim_capped(conn, wishes)).values())


def _places(wish: _ManyWish) -> int:
    return len(wish.lease_tokens)


def _not_claimed(now: claims.Standing | None) -> bytes:
    reason = now.reason() if now else NotClaimedReason.NOT_FOUND
    return wire.NotClaimed(reason=reason.value).model_dump_json().encode()


def _is_capped(now: claims.Standing | None) -> bool:
    return now is not None and now.capped and now.status == "Queued"
