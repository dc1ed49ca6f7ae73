"""Parts of payloads and tokens that many tasks share: rendered once per revision, or once per set of pins."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from trace_etl.api.task.capability import ReadGrant
from trace_etl.dag.operators import OPERATORS, writes_table
from trace_etl.dispatcher.task_api.authorization.permissions import (
    PLACEHOLDER,
    AttemptPrefixes,
    DatasetGrant,
    JsonTemplate,
    Permissions,
    render_json,
)
from trace_etl.model.storage import (
    PARQUET,
    StorageRef,
    buffer_prefix,
    bundle_key,
    export_prefix,
    generation_prefix,
    hot_table,
    scratch_prefix,
    table_ref,
)
from trace_etl.objects.store import ObjectStore
from trace_etl.state.catalog import revisions
from trace_etl.state.catalog.revisions import Revision, RevisionInput, RevisionOutput
from trace_etl.state.db.pool import Conn

_PIN_CACHE_SIZE = 1024  # sets of pins
_MAX_CACHED_PINS = 4096  # characters; longer sets of pins rarely repeat
PREVIOUS = -1
"""The index of the previous output among the inputs of a pin: it is read, but it is not an input."""
_PREVIOUS_INPUT = "previous output"  # not the name of an input, which is an identifier


class UnknownGenerations(LookupError):
    """The storage of some input generations must be read first."""

    def __init__(self, versions: list[UUID]) -> None:
        self.versions = versions


class PinnedInput(NamedTuple):
    """An input as a claim pinned it."""

    dataset_version: UUID
    name: str | None
    """The published name."""
    partitions: list[dict[str, Any]]


class PinnedParts(NamedTuple):
    """Rendered parts that tasks of a revision with the same pins share."""

    inputs: orjson.Fragment
    permissions: Permissions
    previous: orjson.Fragment
    """The previous output, or null."""


@dataclass(frozen=True)
class RevisionParts:
    """Rendered parts that all tasks of a revision share."""

    revision: Revision
    job: orjson.Fragment
    config: orjson.Fragment
    wheres: tuple[orjson.Fragment, ...]
    outputs: JsonTemplate
    writes: list[DatasetGrant]
    """Locations of the outputs; each attempt writes under its own prefix."""
    can_invalidate_inputs: bool
    udf: orjson.Fragment
    checks: orjson.Fragment


class SharedParts:
    """Render shared parts. Revisions and generations are immutable, so each is read once."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._revisions: dict[UUID, RevisionParts] = {}
        self._is_table: dict[UUID, bool] = {}
        self._render_cached = lru_cache(_PIN_CACHE_SIZE)(self._render_pinned)

    def find_revision(self, revision_id: UUID) -> RevisionParts | None:
        """Return the parts of a revision that was read before."""
        return self._revisions.get(revision_id)

    async def get_revision(self, conn: Conn, revision_id: UUID) -> RevisionParts:
        parts = self._revisions.get(revision_id)
        if parts is None:
            parts = self._render_revision(await revisions.load_revision(conn, revision_id))
            self._revisions[revision_id] = parts
        return parts

    def get_pinned(self, common: RevisionParts, org_id: UUID, pins: str | None) -> PinnedParts:
        """Return the parts of a set of pins. Raises UnknownGenerations."""
        render = self._render_cached if len(pins or "") <= _MAX_CACHED_PINS else self._render_pinned
        return render(common.revision.revision_id, org_id, pins)

    async def load_pinned(
        self, conn: Conn, common: RevisionParts, org_id: UUID, pins: str | None
    ) -> PinnedParts:
        """Return the parts of a set of pins. Reads where unknown generations are stored."""
        try:
            return self.get_pinned(common, org_id, pins)
        except UnknownGenerations as unknown:
            producers = await revisions.find_producers(conn, unknown.versions)
            for version in unknown.versions:
                producer = producers.get(version)
                self._is_table[version] = producer is not None and writes_table(
                    producer.operator, producer.update_strategy
                )
            return self.get_pinned(common, org_id, pins)

    def object_ref(self, org_id: UUID, prefix: str, glob: str = f"*.{PARQUET}") -> dict[str, str]:
        """Return the storage reference of a prefix below the root of an organisation."""
        bucket = self._objects.org_root(org_id)
        return {"scheme": self._objects.scheme, "bucket": bucket, "prefix": prefix, "glob": glob}

    # --- once per revision --------------------------------------------------------------------

    def _render_revision(self, revision: Revision) -> RevisionParts:
        operator = OPERATORS.get(revision.operator)
        return RevisionParts(
            revision=revision,
            job=render_json({"dag_name": revision.dag_name, "name": revision.job_name}),
            config=render_json(revision.config),
            wheres=tuple(render_json(item.where) for item in revision.inputs),
            outputs=JsonTemplate(
                [self._describe_output(revision, out) for out in revision.outputs]
            ),
            writes=[self._grant_output(revision, out) for out in revision.outputs],
            can_invalidate_inputs=operator is not None and operator.can_invalidate_inputs,
            udf=render_json(self._describe_function(revision)),
            checks=render_json(revision.checks or []),
        )

    def _describe_function(self, revision: Revision) -> dict[str, str] | None:
        if revision.udf is None:
            return None
        key = bundle_key(self._objects.org_root(revision.org_id), revision.udf["sha256"])
        return {**revision.udf, "bundle_url": f"s3://{key}"}

    def _describe_output(self, revision: Revision, out: RevisionOutput) -> dict[str, Any]:
        return {
            "output_index": out.output_index,
            "name": out.name,
            "dataset_uuid": out.dataset_uuid,
            "dataset_version": out.dataset_version,
            "update_strategy": revision.update_strategy,
            "unique_key": revision.unique_key,
            "columns": out.columns,
            "storage_ref": self._make_output_ref(revision, out, PLACEHOLDER),
        }

    def _grant_output(self, revision: Revision, out: RevisionOutput) -> DatasetGrant:
        is_table = out.columns is None and writes_table(revision.operator, revision.update_strategy)
        ref = (
            table_ref(hot_table(out.dataset_uuid, out.dataset_version))
            if is_table
            else self._make_output_ref(revision, out)
        )
        return DatasetGrant(out.dataset_uuid, out.dataset_version, ref, out.name)

    def _make_output_ref(
        self, revision: Revision, out: RevisionOutput, attempt_prefix: str = ""
    ) -> dict[str, str]:
        operator = OPERATORS.get(revision.operator)
        suffix = operator.output_format(revision.config) if operator else PARQUET
        return self.object_ref(
            revision.org_id, _find_output_prefix(out) + attempt_prefix, f"*.{suffix}"
        )

    # --- once per set of pins -----------------------------------------------------------------

    def _render_pinned(self, revision_id: UUID, org_id: UUID, pins: str | None) -> PinnedParts:
        common = self._revisions[revision_id]
        pinned = parse_pins(pins)
        versions = {item.dataset_version for item in pinned.values()}
        if unknown := versions - self._is_table.keys():
            raise UnknownGenerations(sorted(unknown))
        edges = [(item, pinned[item.input_index]) for item in common.revision.inputs]
        inputs = [
            _describe_input(item, where, pin)
            for (item, pin), where in zip(edges, common.wheres, strict=True)
        ]
        previous = pinned.get(PREVIOUS)
        grants = [
            self._grant_input(org_id, item.dataset_uuid, item.name, pin, item.where)
            for item, pin in edges
        ]
        if previous is not None:
            output = common.revision.outputs[0].dataset_uuid
            grants.append(self._grant_input(org_id, output, _PREVIOUS_INPUT, previous))
        root = f"s3://{self._objects.org_root(org_id)}/"
        permissions = Permissions(
            grants,
            common.writes,
            AttemptPrefixes(root + scratch_prefix(org_id), root + export_prefix(org_id)),
            can_invalidate_inputs=common.can_invalidate_inputs,
        )
        return PinnedParts(
            orjson.Fragment(orjson.dumps(inputs)),
            permissions,
            render_json(previous.partitions[0] if previous else None),
        )

    def _grant_input(
        self,
        org_id: UUID,
        dataset_uuid: UUID,
        name: str,
        pin: PinnedInput,
        where: dict[str, Any] | None = None,
    ) -> ReadGrant:
        """Grant the pinned partitions only: the generation also has output that is not committed."""
        version = pin.dataset_version
        return ReadGrant(
            dataset_uuid,
            version,
            storage_ref=table_ref(hot_table(dataset_uuid, version))
            if self._is_table[version]
            else self.object_ref(org_id, generation_prefix(dataset_uuid, version)),
            input=name,
            name=pin.name,
            where=where,
            prefixes=tuple(StorageRef(**part["storage_ref"]).url for part in pin.partitions),
        )


def parse_pins(pins: str | None) -> dict[int, PinnedInput]:
    """Return the pinned inputs of a claim by input index."""
    return {
        index: PinnedInput(
            UUID(version),
            name,
            [
                {"partition_key": key, "start": start, "end": end, "storage_ref": ref}
                for key, start, end, ref in partitions or ()
            ],
        )
        for index, version, name, partitions in (orjson.loads(pins) if pins else ())
    }


def _find_output_prefix(out: RevisionOutput) -> str:
    if out.columns is not None:
        return buffer_prefix(out.dataset_uuid)
    return generation_prefix(out.dataset_uuid, out.dataset_version)


def _describe_input(
    item: RevisionInput, where: orjson.Fragment, pin: PinnedInput
) -> dict[str, Any]:
    return {
        "input_index": item.input_index,
        "name": item.name,
        "dataset_uuid": item.dataset_uuid,
        "dataset_version": pin.dataset_version,
        "where": where,
        "time_column": item.time_column,
        "partitions": pin.partitions,
    }
