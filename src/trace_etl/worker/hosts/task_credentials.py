"""Credentials of one attempt for S3, in a file that its operator host and its executors read."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from trace_etl.api.task.credentials import Credentials
from trace_etl.model.errors import TraceError
from trace_etl.objects.s3_options import write_profile

_log = structlog.stdlib.get_logger()
_RETRY_SECONDS = 5.0
MintCredentials = Callable[[], Credentials]


@dataclass
class TaskCredentials:
    """The file with the credentials. They are replaced when half of their life is over."""

    file: Path
    mint: MintCredentials
    _renew_at: float = 0.0

    def write(self) -> None:
        """Ask for credentials and write them to the file. Raises TraceError."""
        made = self.mint()
        if made.s3 is None:
            raise CredentialsMissing("the Dispatcher offers no credentials of S3: it uses files")
        write_profile(
            self.file,
            key_id=made.s3.access_key_id,
            secret=made.s3.secret_access_key,
            token=made.s3.session_token,
            expires_at=made.expires_at,
        )
        life = (made.expires_at - datetime.now(UTC)).total_seconds()
        self._renew_at = time.monotonic() + life / 2

    def renew(self) -> None:
        """Replace the credentials if it is time. A failure is tried again: the old ones may last."""
        if time.monotonic() < self._renew_at:
            return
        try:
            self.write()
        except (TraceError, OSError) as error:
            self._renew_at = time.monotonic() + _RETRY_SECONDS
            _log.warning("credentials_not_renewed", file=self.file.name, error=str(error))

    def remove(self) -> None:
        """Delete the file: the attempt has ended."""
        self.file.unlink(missing_ok=True)


class CredentialsMissing(TraceError, code="credentials_missing"):
    """The Dispatcher gives no credentials of S3 to tasks."""
