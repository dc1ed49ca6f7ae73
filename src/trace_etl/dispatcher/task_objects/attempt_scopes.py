"""The prefixes that a capability token grants, for a fence that is still current."""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from trace_etl.api.task.capability import Reads
from trace_etl.dispatcher.task_api.authorization.tokens import Capability
from trace_etl.dispatcher.task_api.lifecycle import explain_refusal
from trace_etl.model.errors import Forbidden
from trace_etl.model.task import Fence
from trace_etl.policy.object_scope import BadAddress, ObjectAddress, ObjectScope, parse_prefix
from trace_etl.state.db.pool import Conn, Pool
from trace_etl.state.tasks import leases, read_grants

_MAX_CACHED = 256  # resolved documents; each lists up to thousands of prefixes


@dataclass(frozen=True)
class AttemptScopes:
    pool: Pool
    _resolved: OrderedDict[str, Reads] = field(default_factory=OrderedDict[str, Reads])

    async def get(self, caller: Capability) -> ObjectScope:
        """Return the scope of a verified token. Raises Forbidden.

        Scratch objects can be read and written, outputs and exports only be written.
        """
        if caller.prefixes is None:
            raise Forbidden("the token of an older release grants no objects; run the task again")
        reads = await self._resolve(caller.reads)
        outputs = {url: None for grant in caller.outputs.values() for url in grant.write_urls}
        scratch, export = caller.prefixes
        try:
            return ObjectScope.parse([*reads.prefixes, scratch], [*outputs, scratch, export])
        except BadAddress as error:
            raise Forbidden(f"a prefix of the token is not canonical: {error}") from error

    async def get_generations(self, caller: Capability) -> ObjectScope:
        """Return the scope of an operator of the platform: fewer, longer prefixes. Raises Forbidden.

        It reads the generations of its inputs, without the pinned partitions, which may be thousands.
        """
        narrow = await self.get(caller)
        datasets = (await self._resolve(caller.reads)).datasets
        generations = [
            ObjectAddress(grant.storage_ref["bucket"], grant.storage_ref["prefix"])
            for grant in datasets
            if grant.table is None
        ]
        generations = [parse_prefix(address.url) for address in generations]
        others = [p for p in narrow.reads if not any(p.is_under(g) for g in generations)]
        reads = dict.fromkeys([*generations, *others, *narrow.writes])
        return ObjectScope(tuple(reads), narrow.writes)

    async def _resolve(self, reads: Reads) -> Reads:
        if reads.sha256 is None:
            return reads
        if (known := self._resolved.get(reads.sha256)) is not None:
            self._resolved.move_to_end(reads.sha256)
            return known
        async with self.pool.connection() as conn:
            resolved = await read_grants.resolve(conn, reads)
        self._resolved[reads.sha256] = resolved
        if len(self._resolved) > _MAX_CACHED:
            self._resolved.popitem(last=False)
        return resolved

    async def require_lease(self, caller: Capability, fence: Fence) -> datetime:
        """Return the end of the lease. Raises Forbidden, NotFound or LeaseLost."""
        caller.require(fence)
        async with self.pool.connection() as conn:
            ends_at = await leases.find_lease_end(conn, fence)
            if ends_at is None:
                raise await explain_refusal(conn, fence)
        return ends_at


async def lock_lease(conn: Conn, fence: Fence) -> None:
    """Keep the attempt from ending until commit. Raises NotFound or LeaseLost."""
    if not await leases.lock_lease(conn, fence):
        raise await explain_refusal(conn, fence)


def require_read(scope: ObjectScope, address: ObjectAddress) -> None:
    """Check that the scope allows reading the address. Raises Forbidden."""
    if not scope.can_read(address):
        raise Forbidden(
            f"the token does not let this attempt read {address.url}; its payload lists the prefixes"
        )


def require_write(scope: ObjectScope, address: ObjectAddress) -> None:
    """Check that the scope allows writing the address. Raises Forbidden."""
    if not scope.can_write(address):
        raise Forbidden(
            f"the token does not let this attempt write {address.url}; its payload lists the prefixes"
        )
