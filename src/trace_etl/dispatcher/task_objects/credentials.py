"""Exchange a capability token for credentials of the attempt's prefixes."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from trace_etl.api.task.credentials import (
    OBJECTS_PATH,
    Credentials,
    CredentialsRequest,
    S3Credentials,
)
from trace_etl.dispatcher.task_api.authorization.tokens import Capability
from trace_etl.dispatcher.task_objects.attempt_scopes import AttemptScopes
from trace_etl.model.errors import Fault, Forbidden, Invalid, LeaseLost, Unavailable
from trace_etl.policy.object_scope import BadAddress, ObjectScope, PolicyTooLong, parse_prefix


class Exchanger(Protocol):
    """Makes credentials: STS sessions, or none, because the object endpoints take the token itself."""

    async def exchange(
        self, scope: ObjectScope, *, session_name: str, ends_at: datetime, can_list: bool
    ) -> S3Credentials | None:
        """Return credentials that allow the scope until `ends_at`; None: use the object endpoints.

        Raises PolicyTooLong or Unavailable.
        """
        ...


class ObjectEndpoints:
    """The exchanger without a cloud: the Dispatcher's object endpoints check every request."""

    async def exchange(
        self, scope: ObjectScope, *, session_name: str, ends_at: datetime, can_list: bool
    ) -> S3Credentials | None:
        return None


class MissingRole:
    """The exchanger of a store with its own access control, while no role is configured for it."""

    async def exchange(
        self, scope: ObjectScope, *, session_name: str, ends_at: datetime, can_list: bool
    ) -> S3Credentials | None:
        raise Unavailable(
            "no role for the credentials of tasks is configured; set TRACE_CREDENTIALS_ROLE_ARN"
        )


@dataclass(frozen=True)
class CredentialMinting:
    scopes: AttemptScopes
    exchanger: Exchanger

    async def mint(self, body: CredentialsRequest, caller: Capability) -> Credentials:
        """Return credentials that end with the lease or the token. Raises Forbidden, LeaseLost, Invalid."""
        fence = body.fence()
        lease_end = await self.scopes.require_lease(caller, fence)
        scope = _narrow(await self.scopes.get(caller), body.read_prefixes)
        ends_at = min(lease_end, datetime.fromtimestamp(caller.expires_at, UTC))
        if ends_at <= datetime.now(UTC):
            raise LeaseLost("stale_lease", "the lease has expired; send a heartbeat first")
        try:
            s3 = await self.exchanger.exchange(
                scope,
                session_name=f"{fence.task_id.hex}-{fence.attempt}",
                ends_at=ends_at,
                can_list=body.can_list,
            )
        except PolicyTooLong as error:
            fault = Fault("read_prefixes", f"{error}; ask for fewer prefixes in one call")
            raise Invalid([fault]) from error
        assert caller.prefixes is not None  # without them `get` raises Forbidden
        return Credentials(
            kind="objects" if s3 is None else "s3",
            expires_at=ends_at,
            read_prefixes=[prefix.url for prefix in scope.reads],
            write_prefixes=[prefix.url for prefix in scope.writes],
            scratch_prefix=caller.prefixes.scratch,
            export_prefix=caller.prefixes.export,
            objects_path=OBJECTS_PATH if s3 is None else None,
            s3=s3,
        )


def _narrow(scope: ObjectScope, wanted: list[str] | None) -> ObjectScope:
    if wanted is None:
        return scope
    try:
        return scope.narrow([parse_prefix(prefix) for prefix in wanted])
    except BadAddress as error:
        raise Invalid([Fault("read_prefixes", str(error))]) from error
    except PermissionError as error:
        raise Forbidden(str(error)) from error
