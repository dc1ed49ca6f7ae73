"""Only the token of a checker may invalidate the inputs of its task."""

from uuid import UUID, uuid4

import pytest

from trace_etl.api.task.capability import ReadGrant
from trace_etl.api.task.events import Invalidation
from trace_etl.dag.operators import OPERATORS
from trace_etl.dispatcher.task_api.authorization.output_authorization import new_invalidation
from trace_etl.dispatcher.task_api.authorization.permissions import (
    AttemptPrefixes,
    DatasetGrant,
    Permissions,
)
from trace_etl.dispatcher.task_api.authorization.tokens import Capability
from trace_etl.model.errors import Forbidden

READ, READ_VERSION = UUID(int=1), UUID(int=2)


def _ref(dataset: UUID) -> dict[str, str]:
    return {"scheme": "file", "bucket": "b", "prefix": f"{dataset}/"}


def _capability(*, can_invalidate_inputs: bool) -> Capability:
    read = ReadGrant(READ, READ_VERSION, _ref(READ), "in", None, None, ())
    permissions = Permissions(
        [read],
        [DatasetGrant(UUID(int=3), UUID(int=4), _ref(UUID(int=3)), "out")],
        AttemptPrefixes("s3://b/scratch/", "s3://b/exports/"),
        can_invalidate_inputs=can_invalidate_inputs,
    )
    return Capability(
        uuid4(), uuid4(), 1, 0, 1, permissions.outputs("mine/"), permissions.checked_inputs, {}
    )


def defect(version: UUID = READ_VERSION) -> Invalidation:
    return Invalidation(
        kind="partition", dataset_uuid=READ, dataset_version=version, partition_key="0-9"
    )


def test_a_checker_can_invalidate_its_input() -> None:
    invalidation = new_invalidation(defect(), _capability(can_invalidate_inputs=True), {})
    assert (invalidation.dataset_uuid, invalidation.dataset_version) == (READ, READ_VERSION)
    assert (invalidation.range_start, invalidation.range_end) == (0, 9)


def test_another_task_cannot_invalidate_its_input() -> None:
    with pytest.raises(Forbidden, match="is not an output"):
        new_invalidation(defect(), _capability(can_invalidate_inputs=False), {})


def test_a_checker_cannot_invalidate_a_generation_that_it_does_not_read() -> None:
    with pytest.raises(Forbidden):
        new_invalidation(defect(uuid4()), _capability(can_invalidate_inputs=True), {})


def test_only_integrity_check_can_invalidate_inputs_and_it_runs_no_user_code() -> None:
    declared = [operator for operator in OPERATORS.values() if operator.can_invalidate_inputs]
    assert [operator.name for operator in declared] == ["integrity_check"]
    assert declared[0].launchers == ("spark",) and not declared[0].needs_udf
