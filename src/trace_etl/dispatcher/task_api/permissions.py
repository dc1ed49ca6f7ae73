"""What a task capability opens, rendered once for all tasks that are alike.

Claims come by the thousand a second, and those of one job differ in little but the prefix that the
attempt itself may write under. So everything else is JSON already when a claim is answered.
"""

from secrets import token_hex
from typing import Any, NamedTuple
from uuid import UUID

import orjson

HOLE = token_hex(16)
"""Stands for an attempt's own part of a prefix; nobody outside can have written it by chance."""


class Form:
    """JSON with a hole in it, rendered once and filled for each task."""

    def __init__(self, value: object) -> None:
        self._parts = orjson.dumps(value).split(HOLE.encode())

    def fill(self, own: str) -> orjson.Fragment:
        """With what the attempt owns in every hole; it must need no escaping."""
        return orjson.Fragment(own.encode().join(self._parts))


class Grant(NamedTuple):
    """A dataset version that a token opens, and where it lives."""

    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: dict[str, str]

    @property
    def url(self) -> str:
        """The form that tokens carry, whatever the scheme."""
        return f"s3://{self.storage_ref['bucket']}/{self.storage_ref['prefix']}"

    def under(self, own: str) -> "Grant":
        """Of all that lives there, only an attempt's own."""
        ref = {**self.storage_ref, "prefix": self.storage_ref["prefix"] + own}
        return Grant(self.dataset_uuid, self.dataset_version, ref)


class Opens:
    """Datasets to read and datasets to write, each attempt under its own prefix of the latter."""

    def __init__(self, reads: list[Grant], writes: list[Grant], *, may_doubt: bool = False) -> None:
        """Who may doubt may also invalidate what it reads."""
        self._writes = writes
        self.doubted = {g.dataset_uuid: g for g in reads} if may_doubt else {}
        own = [g.under(HOLE) for g in writes]
        self._datasets = Form([g._asdict() for g in (*reads, *own)])
        self._s3 = Form(
            {"read_prefixes": [g.url for g in reads], "write_prefixes": [g.url for g in own]}
        )

    def claims(self, own: str) -> dict[str, Any]:
        """What a token says of it."""
        doubts = {"doubts": list(self.doubted)} if self.doubted else {}
        return {"datasets": self._datasets.fill(own), "s3": self._s3.fill(own), **doubts}

    def outputs(self, own: str) -> dict[UUID, Grant]:
        """What an attempt may write, by dataset."""
        return {g.dataset_uuid: g.under(own) for g in self._writes}


class Scope(NamedTuple):
    """What a token is about: one attempt, and what is open to it."""

    org_id: UUID
    task_id: UUID
    attempt: int
    own: str
    """The attempt's own part of every prefix that it writes under."""
    opens: Opens
