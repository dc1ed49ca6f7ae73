"""Secrets of organisations: files of a directory, or variables of the environment."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

from trace_etl.model.errors import TraceError

VARIABLE = "TRACE_SECRET_"
"""The start of the names of variables that hold secrets: `TRACE_SECRET_{name}`."""
REFERENCE = re.compile(r"\$\{secret:(?P<name>[A-Za-z_][A-Za-z0-9_]{0,127})\}")
"""A reference to a secret inside a setting, such as the URL of an RPC pool."""
_MAX_BYTES = 64 * 1024
_MIN_CHARACTERS = 4  # a shorter value would mask parts of ordinary words


class SecretMissing(TraceError, code="secret_missing"):
    """A secret that a job names does not exist, or cannot be used. The message has its name only."""


@dataclass(frozen=True)
class SecretStore:
    """The secrets of one stack. Files are read on each use, so a changed file counts at once.

    An organisation other than the stack's own has a directory of its own: `orgs/{org_id}`.
    """

    directory: Path | None
    org_id: UUID
    """The stack's own organisation. Variables of the environment belong to it."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables that hold secrets (`pick_variables`). A file of the same name wins."""

    def find(self, org_id: UUID, name: str) -> bytes | None:
        """Return the content of a secret; None if it does not exist or cannot be read."""
        try:
            return (self._find_directory(org_id) / name).read_bytes()
        except OSError:
            value = self.variables.get(VARIABLE + name) if org_id == self.org_id else None
            return None if value is None else value.encode()

    def find_missing(self, org_id: UUID, names: Iterable[str]) -> list[str]:
        """Return the names of secrets that do not exist, or are empty."""
        return [name for name in names if not (self.find(org_id, name) or b"").strip()]

    def resolve(self, org_id: UUID, names: Iterable[str]) -> dict[str, str]:
        """Return the values of secrets by name, without the newline at their end.

        Raises SecretMissing, which names the secret and the rule that it breaks, never its value.
        """
        return {name: self._read_value(org_id, name) for name in names}

    def _read_value(self, org_id: UUID, name: str) -> str:
        content = self.find(org_id, name)
        if content is None or not content.strip():
            raise SecretMissing(f"the secret {name!r} is missing or empty; {self._advise(name)}")
        try:
            value = content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise SecretMissing(f"the secret {name!r} is not UTF-8 text; replace it") from None
        if len(content) > _MAX_BYTES or len(value) < _MIN_CHARACTERS or "\x00" in value:
            rule = f"must have {_MIN_CHARACTERS} to {_MAX_BYTES} characters and no NUL"
            raise SecretMissing(f"the secret {name!r} {rule}; replace it")
        return value

    def _advise(self, name: str) -> str:
        return f"write it to the file `secrets/{name}` of the stack's home, or set {VARIABLE}{name}"

    def _find_directory(self, org_id: UUID) -> Path:
        if self.directory is None:
            raise FileNotFoundError("TRACE_SECRETS_DIR is not set")
        return self.directory if org_id == self.org_id else self.directory / "orgs" / str(org_id)


def pick_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that hold secrets."""
    return {name: value for name, value in environment.items() if name.startswith(VARIABLE)}


def expand_url(url: str, secrets: Mapping[str, str]) -> str:
    """Replace the references in a URL by secrets. Raises SecretMissing for one that is not given.

    A URL that is one reference becomes the secret as it is. Elsewhere a secret is percent-encoded.
    """
    whole = REFERENCE.fullmatch(url)
    if whole is not None:
        return _pick(whole, secrets)
    return REFERENCE.sub(lambda match: quote(_pick(match, secrets), safe=""), url)


def _pick(match: re.Match[str], secrets: Mapping[str, str]) -> str:
    if match["name"] not in secrets:
        raise SecretMissing(
            f"the RPC endpoint needs the secret {match['name']!r}, which the job does not name; "
            "add it to the `secrets` of the job"
        )
    return secrets[match["name"]]
