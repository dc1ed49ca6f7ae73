"""The runtimes: how tasks are launched, whether their code is trusted, and what they may use.

They are configuration: the file beside this module, and a file of the stack that adds to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trace_etl.dag.error_messages import describe_error
from trace_etl.dag.field_types import Seconds, parse_seconds
from trace_etl.model.errors import TraceError
from trace_etl.model.task import Isolation

Launcher = Literal["dispatcher", "spark", "process", "sandbox", "lambda"]
Trust = Literal["platform", "untrusted"]
Language = Literal["python", "node", "native"]
_SHIPPED = Path(__file__).with_name("runtimes.yaml")
_NAME = r"^[a-z][a-z0-9_]{0,48}$"  # a queue may get `_endless` at its end
_INLINE = "dispatcher"
_ISOLATED: tuple[Launcher, ...] = ("sandbox", "lambda")
_APPLIED_BY: Mapping[str, tuple[Launcher, ...]] = {
    **dict.fromkeys(("memory_mib", "processes", "temporary_mib"), _ISOLATED),
    "idle_timeout": ("spark", "lambda"),
}


class BadRuntimes(TraceError, code="bad_runtimes"):
    """The file of the runtimes is invalid. The message names the entry and the field."""


def _parse_idle(value: object) -> object:
    """Convert `never` to None, and `0` or a duration to seconds."""
    if value == "never":
        return None
    return 0 if value in (0, "0") else parse_seconds(value)


class Runtime(BaseModel):
    """One entry of the registry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    launcher: Launcher
    """What runs the operator: the Dispatcher itself, the Spark worker, a program, a sandbox, Lambda."""
    trust: Trust
    queue: Annotated[str, Field(pattern=_NAME)] | None = None
    """The queue of its wake-ups. Default: the name of the runtime."""
    language: Language | None = None
    """`sandbox`: what a bundle contains."""
    isolation: Literal["namespaces", "reduced"] = "namespaces"
    """`sandbox`: `reduced` does without user namespaces, with weaker guarantees."""
    slots: Annotated[int, Field(ge=1, le=256)] = 2
    """Tasks of this runtime that one worker runs at once."""
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] = 512
    """`sandbox` and `lambda`: memory of all processes of a task."""
    processes: Annotated[int, Field(ge=1, le=4096)] = 64
    temporary_mib: Annotated[int, Field(ge=1, le=1 << 20)] = 256
    max_timeout: Seconds | None = None
    """The longest `timeout` that a job may have. Default: no limit."""
    idle_timeout: Annotated[int | None, BeforeValidator(_parse_idle)] = None
    """How long a worker without tasks keeps Spark or a Lambda environment warm."""

    @model_validator(mode="after")
    def _check_trust(self) -> "Runtime":
        expected = "untrusted" if self.launcher in _ISOLATED else "platform"
        if self.trust != expected:
            raise ValueError(f"trust must be {expected} for the launcher {self.launcher}")
        if (self.launcher == "sandbox") != (self.language is not None):
            raise ValueError("language is required for the launcher sandbox, and only there")
        if self.isolation != "namespaces" and self.launcher != "sandbox":
            raise ValueError("isolation can be changed for the launcher sandbox only")
        return self

    @model_validator(mode="after")
    def _check_effect(self) -> "Runtime":
        for name in sorted(self.model_fields_set & _APPLIED_BY.keys()):
            if self.launcher not in (allowed := _APPLIED_BY[name]):
                launchers = " or ".join(allowed)
                raise ValueError(
                    f"{name} has an effect only with the launcher {launchers}; remove it"
                )
        return self

    @property
    def level(self) -> Isolation | None:
        """How the code of its tasks is isolated. None: it is code of the platform."""
        if self.launcher == "lambda":
            return "lambda"
        return self.isolation if self.launcher == "sandbox" else None

    @property
    def is_trusted(self) -> bool:
        return self.trust == "platform"


@dataclass(frozen=True)
class Runtimes:
    """The registry of one stack, in order."""

    entries: Mapping[str, Runtime] = field(default_factory=dict[str, Runtime])

    def fitting(self, launchers: Sequence[Launcher]) -> list[str]:
        """List the runtimes with one of these launchers; those of the first launcher come first."""
        return [
            n for kind in launchers for n, entry in self.entries.items() if entry.launcher == kind
        ]

    def lambda_slots(self) -> dict[str, int]:
        """Return the slots of each runtime whose tasks the Dispatcher starts by an invocation."""
        return {n: entry.slots for n, entry in self.entries.items() if entry.launcher == "lambda"}

    def queue_of(self, runtime: str) -> str:
        """Return the queue of a runtime. A runtime that was removed keeps its own name."""
        entry = self.entries.get(runtime)
        return entry.queue or runtime if entry else runtime


@cache
def shipped_runtimes() -> Runtimes:
    """Return the registry of a stack that adds nothing."""
    return _build(_SHIPPED, _read(_SHIPPED))


def load_runtimes(file: Path | None) -> Runtimes:
    """Return the shipped runtimes with the entries and fields of a file. Raises BadRuntimes."""
    if file is None:
        return shipped_runtimes()
    entries = _read(_SHIPPED)
    for name, fields in _read(file).items():
        entries[name] = {**entries.get(name, {}), **fields}
    return _build(file, entries)


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content: object = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRuntimes(f"{file}: cannot be read: {error}") from error
    entries = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    if content is not None and not isinstance(content, dict):
        raise BadRuntimes(f"{file}: must map names of runtimes to their fields")
    for name, fields in entries.items():
        if not isinstance(fields, dict):
            raise BadRuntimes(f"{file}: {name}: must be a map of fields, such as `slots: 2`")
    return cast("dict[str, dict[str, Any]]", entries)


def _build(file: Path, entries: Mapping[str, Mapping[str, Any]]) -> Runtimes:
    built: dict[str, Runtime] = {}
    for name, fields in entries.items():
        try:
            built[name] = Runtime.model_validate(fields)
            _Named(name=name)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join([str(name), *map(str, first["loc"])])
            raise BadRuntimes(
                f"{file}: {where}: {describe_error(first, Runtime.model_fields)}"
            ) from error
        if (name == _INLINE) != (built[name].launcher == _INLINE):
            rule = f"only the runtime {_INLINE} has the launcher {_INLINE}"
            raise BadRuntimes(f"{file}: {name}.launcher: {rule}")
    return Runtimes(built)


class _Named(BaseModel):
    name: Annotated[str, Field(pattern=_NAME)]
