"""A stack on S3 without a role refuses credentials with the name of the missing setting."""

import asyncio
from datetime import UTC, datetime

import pytest

from trace_etl.dispatcher.task_objects.credentials import MissingRole, ObjectEndpoints
from trace_etl.model.errors import Unavailable
from trace_etl.policy.object_scope import ObjectScope

SCOPE = ObjectScope.parse(["s3://trace/scratch/a/"], ["s3://trace/scratch/a/"])


def test_a_store_with_its_own_access_control_needs_a_role() -> None:
    minted = MissingRole().exchange(
        SCOPE, session_name="task", ends_at=datetime.now(UTC), can_list=False
    )
    with pytest.raises(Unavailable, match="set TRACE_CREDENTIALS_ROLE_ARN"):
        asyncio.run(minted)


def test_the_object_endpoints_need_no_credentials() -> None:
    minted = ObjectEndpoints().exchange(
        SCOPE, session_name="task", ends_at=datetime.now(UTC), can_list=False
    )
    assert asyncio.run(minted) is None
