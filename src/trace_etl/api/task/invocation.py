"""The payload of a Lambda invocation: the task payload with its lease and its token, in one object."""

from datetime import datetime
from typing import Any
from uuid import UUID

from trace_etl.api.task.lifecycle import Claimed
from trace_etl.api.task.payload import TaskPayload


class Invocation(TaskPayload):
    """Everything that a Lambda function needs to run an attempt and to report about it."""

    lease_token: UUID
    lease_expires_at: datetime
    capability_token: str
    bundle_url: str | None = None
    """Where the bundle is. The invoker reads it; the function itself need not."""
    org_id: UUID  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    """Environments are never shared between organisations."""

    @classmethod
    def of(cls, claimed: Claimed, org_id: UUID) -> "Invocation":
        """Return the payload of a claimed task."""
        task = claimed.task
        fields: dict[str, Any] = {**dict(task), "org_id": org_id}
        return cls(
            **fields,
            lease_token=claimed.lease_token,
            lease_expires_at=claimed.lease_expires_at,
            capability_token=claimed.capability_token,
            bundle_url=task.udf.bundle_url if task.udf else None,
        )

    def claimed(self) -> Claimed:
        """Return the invocation as the answer to a claim."""
        return Claimed(
            attempt=self.attempt,
            lease_token=self.lease_token,
            lease_expires_at=self.lease_expires_at,
            capability_token=self.capability_token,
            task=self,
        )
