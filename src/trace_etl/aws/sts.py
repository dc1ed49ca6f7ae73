"""Scoped credentials from STS: sessions of one role, each with a session policy."""

import asyncio
from datetime import datetime
from functools import cached_property
from typing import Any

import boto3  # pyright: ignore[reportMissingTypeStubs]
import structlog
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
)

from trace_etl.api.task.credentials import S3Credentials
from trace_etl.model.errors import Unavailable
from trace_etl.policy.object_scope import ObjectScope, PolicyTooLong, session_policy

_MIN_SECONDS = 900  # the shortest session of STS; the policy itself ends earlier
_log = structlog.stdlib.get_logger()


class StsExchanger:
    """Assume a role with a session policy. boto3 finds the Dispatcher's own credentials."""

    def __init__(
        self,
        role_arn: str,
        *,
        region: str | None = None,
        sts_url: str | None = None,
        s3_url: str | None = None,
    ) -> None:
        self._role_arn, self._region = role_arn, region
        self._sts_url, self._s3_url = sts_url, s3_url

    async def exchange(
        self, scope: ObjectScope, *, session_name: str, ends_at: datetime, can_list: bool
    ) -> S3Credentials | None:
        policy = session_policy(scope, ends_at=ends_at, can_list=can_list)
        made = await asyncio.to_thread(self._assume_role, session_name, policy)
        return S3Credentials(
            access_key_id=made["AccessKeyId"],
            secret_access_key=made["SecretAccessKey"],
            session_token=made["SessionToken"],
            region=self._region,
            endpoint_url=self._s3_url,
        )

    def _assume_role(self, session_name: str, policy: str) -> dict[str, str]:
        try:
            answer = self._client.assume_role(
                RoleArn=self._role_arn,
                RoleSessionName=session_name,
                Policy=policy,
                DurationSeconds=_MIN_SECONDS,
            )
        except ClientError as error:
            response: Any = error.response
            code = str(response.get("Error", {}).get("Code", ""))
            if code == "PackedPolicyTooLarge":
                raise PolicyTooLong("STS refused the session policy as too large") from error
            _log.warning("assume_role_refused", session=session_name, code=code)
            raise Unavailable(
                f"STS refused to assume the role ({code}); check TRACE_CREDENTIALS_ROLE_ARN and its policy"
            ) from error
        except BotoCoreError as error:
            _log.warning("sts_unavailable", session=session_name, error=type(error).__name__)
            raise Unavailable("STS does not answer; retry the request") from error
        return answer["Credentials"]

    @cached_property
    def _client(self) -> Any:
        session: Any = boto3.Session(region_name=self._region)
        retries = {"mode": "standard", "total_max_attempts": 3}
        config: Any = Config(connect_timeout=5, read_timeout=10, retries=retries)
        return session.client("sts", endpoint_url=self._sts_url, config=config)
