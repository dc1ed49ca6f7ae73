"""Where the objects of a stack are: in its home, or in S3."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from trace_etl.lite.credentials.keys import LOCAL_ORG
from trace_etl.lite.errors import BadSetting
from trace_etl.lite.home import Home
from trace_etl.objects.errors import StorageError, UnsupportedStore
from trace_etl.objects.probe import check_access
from trace_etl.objects.settings import ObjectsSettings
from trace_etl.objects.store import ObjectStore

_DOCUMENTATION = "docs/how-to/s3.md has an example"


class _Settings(ObjectsSettings):
    model_config = SettingsConfigDict(env_prefix="TRACE_", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True)
class StackObjects:
    """The object store of a stack, as its services use it."""

    url: str
    settings: Mapping[str, str]
    """Settings of every service that uses the store. They have no key."""
    read: tuple[Path, ...] = ()
    """Files that these services read: credentials and certificates."""

    def open(self) -> ObjectStore:
        """Open the store. Raises UnsupportedStore."""
        values = {name.removeprefix("TRACE_").lower(): v for name, v in self.settings.items()}
        return _Settings(**cast("dict[str, Any]", values)).open_objects()

    @property
    def remote_url(self) -> str | None:
        """The URL to save. None for the directory of the home, which may be moved."""
        return None if self.url.startswith("file:") else self.url


def choose(
    home: Home, requested: str | None, saved: str | None, environment: Mapping[str, str]
) -> StackObjects:
    """Choose the store of this start and check that it can be used. Raises BadSetting."""
    local = home.objects.as_uri()
    before = saved or (local if home.config.exists() else None)
    url = requested or before or local
    if before is not None and url.rstrip("/") != before.rstrip("/"):
        raise BadSetting(
            f"--objects-url: the objects of this stack are in {before}, not in {url}",
            "use another home for another store: trace up --home DIRECTORY --objects-url URL",
        )
    if url == local:
        return StackObjects(url, {"TRACE_OBJECTS_URL": url})
    found = _find_credentials(environment)
    try:
        settings = _Settings(objects_url=url, **found)
        check_access(settings.open_objects(), UUID(LOCAL_ORG))
    except ValidationError as error:
        reasons = "; ".join(
            f"{e['loc'][0] if e['loc'] else ''}: {e['msg']}" for e in error.errors()
        )
        raise BadSetting(f"--objects-url {url}: {reasons}", _DOCUMENTATION) from None
    except UnsupportedStore as error:
        raise BadSetting(str(error), _DOCUMENTATION) from None
    except StorageError as error:
        raise BadSetting(f"--objects-url: {error}", _DOCUMENTATION) from None
    files = (settings.s3_credentials_file, settings.s3_ca_file)
    passed = {f"TRACE_{name.upper()}": str(value) for name, value in found.items()}
    return StackObjects(
        url,
        {"TRACE_OBJECTS_URL": url, **passed},
        tuple(f.resolve() for f in files if f is not None),
    )


def open_saved(home: Home, saved: str | None, environment: Mapping[str, str]) -> ObjectStore:
    """Open the store of a stack with the rights of the caller. Raises BadSetting."""
    url = saved or home.objects.as_uri()
    found = {} if saved is None else _find_credentials(environment)
    try:
        return _Settings(objects_url=url, **found).open_objects()
    except (ValidationError, UnsupportedStore) as error:
        raise BadSetting(
            f"the objects of this stack are in {url}: {error}", _DOCUMENTATION
        ) from None


def _find_credentials(environment: Mapping[str, str]) -> dict[str, Any]:
    """Use the credentials file of the AWS tools, which services could not find, if there is no key."""
    if environment.get("AWS_ACCESS_KEY_ID") or environment.get("TRACE_S3_CREDENTIALS_FILE"):
        return {}
    given = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    file = Path(given) if given else Path.home() / ".aws" / "credentials"
    if not file.is_file() or not os.access(file, os.R_OK):
        return {}
    return {
        "s3_credentials_file": file.resolve(),
        "s3_profile": environment.get("AWS_PROFILE", "default"),
    }
