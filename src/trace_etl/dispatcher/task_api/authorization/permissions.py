"""Permissions of a task's capability token, rendered once for all similar tasks.

The Dispatcher handles thousands of claims per second. Claims of one job differ only in the prefix that
the attempt may write under, so everything else is rendered to JSON once and reused.
"""

import json
from secrets import token_hex
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from trace_etl.api.task.capability import ReadGrant, Reads
from trace_etl.model.storage import BUFFERS, short_buffer_prefix
from trace_etl.state.tasks.read_grants import digest_of

PLACEHOLDER = token_hex(16)
"""Placeholder for the attempt prefix. It is random, so that no user value can contain it."""
MAX_INLINE_BYTES = 4096
"""Inputs whose JSON is longer are recorded in `read_grants`. A token then fits a header of 8 KiB."""


def render_json(value: object) -> orjson.Fragment:
    """Render a value that users wrote. Unlike orjson, this accepts integers of any size."""
    return orjson.Fragment(json.dumps(value, allow_nan=False).encode())


class JsonTemplate:
    """JSON with placeholders, rendered once and filled per attempt."""

    def __init__(self, value: object) -> None:
        self._parts = orjson.dumps(value).split(PLACEHOLDER.encode())

    def fill(self, attempt_prefix: str) -> orjson.Fragment:
        """Replace every placeholder by the attempt prefix, which must need no JSON escaping."""
        return orjson.Fragment(attempt_prefix.encode().join(self._parts))


class DatasetGrant(NamedTuple):
    """A dataset version that a token grants, and its storage location."""

    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: dict[str, str]
    output: str = ""
    """The name of the output in its job; empty for an input."""

    @property
    def prefix(self) -> str:
        """The prefix in its bucket; empty if the rows are in a table of Postgres data."""
        return self.storage_ref.get("prefix", "")

    @property
    def url(self) -> str | None:
        """The location as tokens carry it, the same for every storage scheme; None for a table."""
        return f"s3://{self.storage_ref['bucket']}/{self.prefix}" if self.prefix else None

    @property
    def is_buffered(self) -> bool:
        """Whether the sink writes the rows, from batches that tasks publish."""
        return self.prefix.startswith(BUFFERS)

    @property
    def write_urls(self) -> list[str]:
        """All prefixes that the grant lets an attempt write under; none for a table."""
        prefixes = [self.prefix] if self.prefix else []
        if self.is_buffered:
            prefixes.append(short_buffer_prefix(self.prefix))
        return [f"s3://{self.storage_ref['bucket']}/{prefix}" for prefix in prefixes]

    def under(self, attempt_prefix: str) -> "DatasetGrant":
        """Return the grant narrowed to one attempt's prefix. The grant of a table stays the same."""
        if not self.prefix:
            return self
        ref = {**self.storage_ref, "prefix": self.prefix + attempt_prefix}
        return self._replace(storage_ref=ref)


class AttemptPrefixes(NamedTuple):
    """The prefixes of temporary and of exported objects, as tokens carry them."""

    scratch: str
    export: str


class Permissions:
    """What a task may read, and what it may write under its attempt prefix."""

    def __init__(
        self,
        reads: list[ReadGrant],
        writes: list[DatasetGrant],
        prefixes: AttemptPrefixes,
        *,
        can_invalidate_inputs: bool = False,
    ) -> None:
        """With `can_invalidate_inputs`, the task may report defects of the datasets it reads."""
        self._writes = writes
        self._prefixes = prefixes
        self.checked_inputs = {
            g.dataset_uuid: DatasetGrant(g.dataset_uuid, g.dataset_version, g.storage_ref)
            for g in (reads if can_invalidate_inputs else ())
        }
        entries = [_render_entry(read) for read in reads]
        read_prefixes = [prefix for g in reads for prefix in g.prefixes]
        rendered = orjson.dumps({"datasets": entries, "read_prefixes": read_prefixes})
        self.document: bytes | None = rendered if len(rendered) > MAX_INLINE_BYTES else None
        """The inputs, if they are too long for a token. It must be recorded before a token is sent."""
        self.reads = Reads(tuple(reads))
        if self.document is not None:
            self.reads = Reads((), digest_of(self.document))
            entries, read_prefixes = self._shorten(reads), []
        narrowed = [g.under(PLACEHOLDER) for g in writes]
        outputs = [{**_name_location(g), "output": g.output} for g in narrowed]
        self._datasets = JsonTemplate([*entries, *outputs])
        self._s3 = JsonTemplate(
            {
                "read_prefixes": read_prefixes,
                "write_prefixes": list(dict.fromkeys(u for g in narrowed for u in g.write_urls)),
                "scratch_prefix": prefixes.scratch + PLACEHOLDER,
                "export_prefix": prefixes.export + PLACEHOLDER,
            }
        )

    def _shorten(self, reads: list[ReadGrant]) -> list[dict[str, Any]]:
        """Return the inputs without filters and partitions, or none but the checked ones."""
        names = [_name_location(g) for g in reads]
        if len(orjson.dumps(names)) <= MAX_INLINE_BYTES:
            return names
        return [_name_location(g) for g in self.checked_inputs.values()]

    def claims(self, attempt_prefix: str) -> dict[str, Any]:
        """Return the token claims for one attempt."""
        claims: dict[str, Any] = {
            "datasets": self._datasets.fill(attempt_prefix),
            "s3": self._s3.fill(attempt_prefix),
        }
        if self.reads.sha256 is not None:
            claims["reads"] = {"sha256": self.reads.sha256}
        if self.checked_inputs:
            claims["doubts"] = list(self.checked_inputs)
        return claims

    def outputs(self, attempt_prefix: str) -> dict[UUID, DatasetGrant]:
        """Return the outputs that one attempt may write, by dataset."""
        return {g.dataset_uuid: g.under(attempt_prefix) for g in self._writes}

    def attempt_prefixes(self, attempt_prefix: str) -> AttemptPrefixes:
        """Return the scratch and export prefixes of one attempt."""
        scratch, export = self._prefixes
        return AttemptPrefixes(scratch + attempt_prefix, export + attempt_prefix)


def _name_location(grant: DatasetGrant | ReadGrant) -> dict[str, Any]:
    return {
        "dataset_uuid": grant.dataset_uuid,
        "dataset_version": grant.dataset_version,
        "storage_ref": grant.storage_ref,
    }


def _render_entry(grant: ReadGrant) -> dict[str, Any]:
    entry = {**_name_location(grant), "input": grant.input, "partitions": len(grant.prefixes)}
    if grant.name is not None:
        entry["name"] = grant.name
    if grant.where is not None:
        entry["where"] = render_json(grant.where)
    return entry


class TokenScope(NamedTuple):
    """The attempt that a token is for, and its permissions."""

    org_id: UUID
    task_id: UUID
    attempt: int
    attempt_prefix: str
    """The last part of every storage prefix that only this attempt writes."""
    permissions: Permissions
    scope: dict[str, Any]
    """The scope of the task, as its payload has it."""
