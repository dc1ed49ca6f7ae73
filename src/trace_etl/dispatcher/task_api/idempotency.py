"""What a call says, apart from who says it: so that a repeat is known as one."""

import hashlib
from functools import cache
from typing import Literal
from uuid import UUID

from trace_etl.api.task import lifecycle as wire

# A repeat with a renewed token is the same completion.
_NOT_CONTENT = {"task_id", "attempt", "lease_token", "capability_token"}
_BARE = _NOT_CONTENT | {"status"}


def is_bare(body: wire.Complete) -> bool:
    """Whether it says how the attempt ended and nothing of what it made."""
    return not (body.outputs or body.events or body.datasets_published or body.invalidations)


def digest(body: wire.Complete) -> bytes:
    """A hash of what a completion says."""
    return _bare_digest(body.status) if body.model_fields_set <= _BARE else of_call(body)


def of_call(body: wire.Fenced) -> bytes:
    """The same of any call."""
    return hashlib.sha256(body.model_dump_json(exclude=_NOT_CONTENT).encode()).digest()


@cache
def _bare_digest(status: Literal["Completed", "Failed", "Canceled"]) -> bytes:
    """Most completions say nothing but this: their hash is known."""
    nobody = UUID(int=0)
    bare = wire.Complete(task_id=nobody, attempt=1, lease_token=nobody, status=status)
    return of_call(bare)
