"""Permissions of a task's capability token, rendered once for all similar tasks.

The Dispatcher handles thousands of claims per second. Claims of one job differ only in the prefix that
the attempt may write under, so everything else is rendered to JSON once and reused.
"""

from secrets import token_hex
from typing import Any, NamedTuple
from uuid import UUID

import orjson

PLACEHOLDER = token_hex(16)
"""Placeholder for the attempt prefix. It is random, so that no user value can contain it."""


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

    @property
    def url(self) -> str:
        """The location as tokens carry it, the same for every storage scheme."""
        return f"s3://{self.storage_ref['bucket']}/{self.storage_ref['prefix']}"

    def under(self, attempt_prefix: str) -> "DatasetGrant":
        """Return the grant narrowed to one attempt's prefix."""
        ref = {**self.storage_ref, "prefix": self.storage_ref["prefix"] + attempt_prefix}
        return DatasetGrant(self.dataset_uuid, self.dataset_version, ref)


class Permissions:
    """Datasets that a task may read, and datasets it may write under its attempt prefix."""

    def __init__(
        self,
        reads: list[DatasetGrant],
        writes: list[DatasetGrant],
        *,
        can_invalidate_inputs: bool = False,
    ) -> None:
        """With `can_invalidate_inputs`, the task may report defects of the datasets it reads."""
        self._writes = writes
        self.checked_inputs = {g.dataset_uuid: g for g in reads} if can_invalidate_inputs else {}
        narrowed = [g.under(PLACEHOLDER) for g in writes]
        self._datasets = JsonTemplate([g._asdict() for g in (*reads, *narrowed)])
        self._s3 = JsonTemplate(
            {"read_prefixes": [g.url for g in reads], "write_prefixes": [g.url for g in narrowed]}
        )

    def claims(self, attempt_prefix: str) -> dict[str, Any]:
        """Return the token claims for one attempt."""
        claims: dict[str, Any] = {
            "datasets": self._datasets.fill(attempt_prefix),
            "s3": self._s3.fill(attempt_prefix),
        }
        if self.checked_inputs:
            claims["doubts"] = list(self.checked_inputs)
        return claims

    def outputs(self, attempt_prefix: str) -> dict[UUID, DatasetGrant]:
        """Return the outputs that one attempt may write, by dataset."""
        return {g.dataset_uuid: g.under(attempt_prefix) for g in self._writes}


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
