"""Content hashes that identify repeated calls."""

import hashlib
from functools import cache
from uuid import UUID

from trace_etl.api.task import lifecycle as bodies
from trace_etl.model.task import ReportedStatus

# A repeat with a renewed token is the same call.
_NOT_CONTENT = {"task_id", "attempt", "lease_token", "capability_token"}
_EMPTY_FIELDS = _NOT_CONTENT | {"status"}


def has_no_content(body: bodies.Complete) -> bool:
    """Return whether the completion reports a status and no outputs, events or publications."""
    return not (
        body.outputs
        or body.events
        or body.datasets_published
        or body.invalidations
        or body.mapped_partitions
        or body.checks
    )


def hash_completion(body: bodies.Complete) -> bytes:
    return (
        _hash_empty_completion(body.status)
        if body.model_fields_set <= _EMPTY_FIELDS
        else hash_call(body)
    )


def hash_call(body: bodies.Fenced) -> bytes:
    return hashlib.sha256(body.model_dump_json(exclude=_NOT_CONTENT).encode()).digest()


@cache
def _hash_empty_completion(status: ReportedStatus) -> bytes:
    """Cache the hash of a completion without content, the most frequent kind."""
    no_task = UUID(int=0)
    empty = bodies.Complete(task_id=no_task, attempt=1, lease_token=no_task, status=status)
    return hash_call(empty)
