"""Exchange a capability token for credentials of the attempt's prefixes."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from trace_etl.api.task.credentials import (
    OBJECTS_PATH,
    Credentials,
    CredentialsRequest,
    S3Credentials,
)
from trace_etl.dispatcher.task_api.authorization.tokens import Capability
from trace_etl.dispatcher.task_objects.attempt_scopes import AttemptScopes
from trace_etl.model.errors import Fault, Forbidden, Invalid, LeaseLost, Unavailable
from trace_etl.model.storage import BUFFERS, DATASETS
from trace_etl.policy.object_scope import BadAddress, ObjectScope, PolicyTooLong, parse_prefix

_log = structlog.stdlib.get_logger()
_OPERATOR_LIFE = timedelta(minutes=15)  # the length of an STS session


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
        find_scope = self.scopes.get_generations if body.generations else self.scopes.get
        scope = _narrow(await find_scope(caller), body.read_prefixes)
        now = datetime.now(UTC)
        if lease_end <= now:
            raise LeaseLost("stale_lease", "the lease has expired; send a heartbeat first")
        # A worker ends its operator when the lease is lost.
        longest = now + _OPERATOR_LIFE if body.generations else lease_end
        ends_at = min(longest, datetime.fromtimestamp(caller.expires_at, UTC))
        scope, s3 = await self._exchange(scope, body, ends_at)
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

    async def _exchange(
        self, scope: ObjectScope, body: CredentialsRequest, ends_at: datetime
    ) -> tuple[ObjectScope, S3Credentials | None]:
        """Return credentials and their scope, which is wider if the policy of an operator is too long."""

        async def exchange(scope: ObjectScope) -> S3Credentials | None:
            name = f"{body.task_id.hex}-{body.attempt}"
            return await self.exchanger.exchange(
                scope, session_name=name, ends_at=ends_at, can_list=body.can_list
            )

        try:
            return scope, await exchange(scope)
        except PolicyTooLong as error:
            if not body.generations:
                fault = Fault("read_prefixes", f"{error}; ask for fewer prefixes in one call")
                raise Invalid([fault]) from error
        _log.warning("credentials_widened", task_id=str(body.task_id), reads=len(scope.reads))
        wide = scope.widen((DATASETS, BUFFERS))
        return wide, await exchange(wide)


def _narrow(scope: ObjectScope, wanted: list[str] | None) -> ObjectScope:
    if wanted is None:
        return scope
    try:
        return scope.narrow([parse_prefix(prefix) for prefix in wanted])
    except BadAddress as error:
        raise Invalid([Fault("read_prefixes", str(error))]) from error
    except PermissionError as error:
        raise Forbidden(str(error)) from error
