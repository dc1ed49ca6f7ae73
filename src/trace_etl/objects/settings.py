"""Settings of every process that uses the object store."""

from typing import Any

from pydantic import model_validator
from pydantic_settings import BaseSettings

_REMOVED = ("object_scheme", "objects_root")


class ObjectsSettings(BaseSettings):
    """The URL of the object store. The settings that it replaced are rejected."""

    objects_url: str
    """The object store, for example `file:///var/lib/trace/objects`."""
    object_scheme: None = None
    """Removed."""
    objects_root: None = None
    """Removed."""

    @model_validator(mode="before")
    @classmethod
    def _reject_removed(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in _REMOVED:
            if values.get(name) is not None:
                raise ValueError(
                    f"TRACE_{name.upper()} is no longer a setting: unset it, and set "
                    "TRACE_OBJECTS_URL instead, for example file:///var/lib/trace/objects"
                )
        return values
