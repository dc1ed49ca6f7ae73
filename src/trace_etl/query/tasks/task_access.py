"""What the attempt of a task may query: the inputs that its capability token pins."""

from collections import OrderedDict
from dataclasses import dataclass, field

from trace_etl.api.task.capability import ReadGrant, Reads
from trace_etl.model.errors import Invalid
from trace_etl.model.storage import StorageRef
from trace_etl.query.pins import Pin
from trace_etl.query.requests import TableReference
from trace_etl.query.tasks.task_tokens import TaskCapability
from trace_etl.state.db.pool import StateReader
from trace_etl.state.tasks import read_grants, task_leases

_CACHE_SIZE = 256
_SCHEME = "s3://"


@dataclass(frozen=True)
class RecordedReads:
    """Inputs that tokens name by a digest. They never change, so each is read once."""

    _known: OrderedDict[str, Reads] = field(default_factory=OrderedDict[str, Reads])

    async def resolve(self, state: StateReader, reads: Reads) -> Reads:
        """Return the inputs of a token. Raises Forbidden."""
        if reads.sha256 is None:
            return reads
        found = self._known.get(reads.sha256)
        if found is None:
            found = await state.read(lambda conn: read_grants.resolve(conn, reads))
            self._known[reads.sha256] = found
            if len(self._known) > _CACHE_SIZE:
                self._known.popitem(last=False)
        return found


@dataclass(frozen=True)
class TaskAccess:
    """An attempt that holds its lease. It reads its inputs, as they were pinned at the claim."""

    capability: TaskCapability
    recorded: RecordedReads

    @property
    def slot_key(self) -> str:
        return str(self.capability.task_id)

    async def authorize(self, state: StateReader) -> None:
        """Raise LeaseLost if the attempt has ended, was canceled or lost its lease."""
        token = self.capability
        await state.read(
            lambda conn: task_leases.require_lease(conn, token.org_id, token.task_id, token.attempt)
        )

    async def pin(self, state: StateReader, tables: list[TableReference]) -> list[Pin]:
        await self.authorize(state)
        reads = await self.recorded.resolve(state, self.capability.reads)
        found = {table.name: find_inputs(reads.datasets, table.name) for table in tables}
        faults = [
            table.fault(_explain(table.name, found[table.name], reads.datasets))
            for table in tables
            if len(found[table.name]) != 1
        ]
        if faults:
            raise Invalid(faults)
        return [make_pin(name, inputs[0]) for name, inputs in sorted(found.items())]


def find_inputs(grants: tuple[ReadGrant, ...], name: str) -> list[ReadGrant]:
    """Return the inputs with a name. The names of inputs hide published names."""
    return [g for g in grants if g.input == name] or [g for g in grants if g.name == name]


def make_pin(name: str, grant: ReadGrant) -> Pin:
    """Return a granted input under one of its names."""
    return Pin(
        name,
        grant.dataset_version,
        tuple(_make_storage_ref(grant, url) for url in grant.prefixes),
        table=grant.table,
        where=grant.where,
    )


def _make_storage_ref(grant: ReadGrant, url: str) -> StorageRef:
    bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
    return StorageRef(grant.storage_ref["scheme"], bucket, prefix)


def _explain(name: str, found: list[ReadGrant], grants: tuple[ReadGrant, ...]) -> str:
    if found:
        inputs = ", ".join(g.input for g in found)
        return f"{name!r} is the dataset of several inputs; name one of them: {inputs}"
    inputs = ", ".join(sorted(g.input for g in grants))
    return f"{name!r} is not an input of this task" + (f"; its inputs are {inputs}" * bool(inputs))
