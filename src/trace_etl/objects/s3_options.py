"""Options of the S3 client: endpoint, encryption, and where its credentials come from."""

import os
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as SyntaxFault
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_etl.objects.errors import StorageRefused

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

_REREAD_AFTER = timedelta(minutes=1)  # credential files are rewritten when keys rotate
_END = "trace_expires_at"
_RETRY_TIMEOUT = timedelta(seconds=60)
_MAX_RETRIES = 6


@dataclass(frozen=True)
class S3Options:
    """Options without keys: the store is sent to executors, which read the credentials where they run."""

    region: str | None = None
    """None: `AWS_REGION`, or `us-east-1`."""
    endpoint: str | None = None
    """None: AWS."""
    path_style: bool = False
    encryption: str | None = None
    """`AES256` or `aws:kms`. None: as the bucket is configured."""
    kms_key_id: str | None = None
    credentials_file: Path | None = None
    """None: the environment, a web identity, or the role of the container or the machine."""
    profile: str = "default"
    """The section of the credentials file."""
    ca_file: Path | None = None
    """Certificates to trust besides those of the system."""

    def open_client(self, bucket: str) -> "S3Store":
        """Open a client for one bucket. Raises StorageRefused."""
        from obstore.store import S3Store  # executors that only write files do not load obstore

        return S3Store(
            bucket,
            config=self._make_config(),
            client_options=self._make_client_options(),
            retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
            credential_provider=self.read_credentials if self.credentials_file else None,
        )

    def read_credentials(self) -> "S3Credential":
        """Read the credentials file. Raises StorageRefused, which names no key."""
        section = read_profile(self.credentials_file or Path(), self.profile)
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "token": section.get("aws_session_token"),
            "expires_at": _find_end(section),
        }

    def _make_config(self) -> Any:
        given = {
            "region": self.region,
            "endpoint": self.endpoint,
            "virtual_hosted_style_request": not self.path_style,
            "server_side_encryption": self.encryption,
            "sse_kms_key_id": self.kms_key_id,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _make_client_options(self) -> Any:
        # An http:// endpoint is a choice of the operator, for a server on the same machine or network.
        plain = (self.endpoint or "").startswith("http://")
        options: dict[str, Any] = {"allow_http": plain, "timeout": "120s", "connect_timeout": "5s"}
        if self.ca_file is not None:
            options["root_certificate"] = self.ca_file.read_bytes()
        return options


def _find_end(section: Mapping[str, str]) -> datetime:
    """Return the time at which the credentials file is read again."""
    reread = datetime.now(UTC) + _REREAD_AFTER
    given = section.get(_END)
    return min(reread, datetime.fromisoformat(given)) if given else reread


def write_profile(
    file: Path, *, key_id: str, secret: str, token: str, expires_at: datetime
) -> None:
    """Write temporary credentials, readable by the owner only. Readers see the old or the new file."""
    lines = [
        "[default]",
        f"aws_access_key_id = {key_id}",
        f"aws_secret_access_key = {secret}",
        f"aws_session_token = {token}",
        f"{_END} = {expires_at.isoformat()}",
    ]
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as opened:
        opened.write("\n".join(lines) + "\n")
    new.replace(file)


def read_profile(file: Path, profile: str) -> dict[str, str]:
    """Read a section of a credentials file in the format of the AWS tools. Raises StorageRefused."""
    parser = ConfigParser(interpolation=None, default_section="")
    problem = f"TRACE_S3_CREDENTIALS_FILE: {file}"
    try:
        parser.read_string(file.read_text())
    except OSError as error:
        raise StorageRefused(
            f"{problem} cannot be read: {error.strerror}; correct the path or its mode"
        ) from None
    except (SyntaxFault, UnicodeDecodeError):  # their messages quote lines of the file
        raise StorageRefused(f"{problem} is not a credentials file of AWS; write one") from None
    section = dict(parser[profile]) if parser.has_section(profile) else {}
    missing = {"aws_access_key_id", "aws_secret_access_key"} - section.keys()
    if missing:
        raise StorageRefused(
            f"{problem} has no {sorted(missing)[0]} in its section [{profile}]; add it"
        )
    return section
