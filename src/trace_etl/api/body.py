"""Base classes and shared field types of all bodies."""

import math
import re
from itertools import chain
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, cast
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    model_validator,
)

from trace_etl.model.scope import MAX_BLOCK
from trace_etl.model.task import Fence

Block = Annotated[int, Field(ge=0, le=MAX_BLOCK)]
Json = dict[str, Any]
Attempt = Annotated[int, Field(ge=1, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
WorkerId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
Text = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[^\x00]*$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00]*$")]
DatasetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,127}$")]


MAY_HAVE_NUL = {"may_have_nul": True}
ALREADY_CHECKED = {"already_checked": True}
"""The context of a validation whose values another model, or another process, has checked."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_INTEGERS = range(-(2**63), 2**64)
_MAX_NESTING = 64
_MAX_UNKNOWN = 20


class Request(BaseModel):
    """The body of a request. Unknown fields are refused, and values that Postgres cannot store."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse_json(cls, body: bytes) -> Self:
        """Parse a body strictly. Raises ValidationError."""
        context = MAY_HAVE_NUL if b"\\u0000" in body else None
        return cls.model_validate_json(body, strict=True, context=context)

    @model_validator(mode="after")
    def _refuse_unstorable(self, info: ValidationInfo) -> Self:
        if info.context is ALREADY_CHECKED:
            return self
        if info.mode == "json" and info.context is not MAY_HAVE_NUL:
            return self  # `parse_json` has already searched the whole text, which is much cheaper
        for name, value in self.__dict__.items():
            if value and (problem := find_json_problem(value)):
                raise ValueError(f"`{name}` {problem}")
        return self


class UserRequest(Request):
    """The body of a request of a person. Many unknown fields are one fault, not a fault each."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_unknown(cls, data: object) -> object:
        """Listing each of a hundred thousand fields would keep the event loop busy for seconds."""
        if (
            isinstance(data, dict)
            and len(cast("Json", data)) > len(cls.model_fields) + _MAX_UNKNOWN
        ):
            known = ", ".join(cls.model_fields)
            raise ValueError(f"has {len(cast('Json', data))} fields; known fields: {known}")
        return cast("object", data)


def find_json_problem(value: object) -> str | None:
    """Say why a JSON value cannot be stored, or not be read by a worker; None if it can.

    Checks all values of one level together: a loop over a million values would block other requests.
    Nested models are skipped: they check themselves.
    """
    level: list[Any] = [value]
    for _ in range(_MAX_NESTING + 1):
        kinds = set(map(type, level))
        if problem := _find_scalar_problem(level, kinds):
            return problem
        lists: list[list[Any]] = _select(level, list) if list in kinds else []
        dicts: list[Json] = _select(level, dict) if dict in kinds else []
        level = [*chain.from_iterable(lists), *chain.from_iterable(dicts)]
        level += chain.from_iterable(pairs.values() for pairs in dicts)
        if not level:
            return None
    return f"is nested more than {_MAX_NESTING} levels deep; use fewer levels"


def _find_scalar_problem(values: list[Any], kinds: set[type[Any]]) -> str | None:
    if str in kinds and (found := _UNSTORABLE.search("".join(_select(values, str)))):
        kind = "a NUL character (\\u0000)" if found[0] == "\x00" else "half of a surrogate pair"
        return f"contains {kind}; remove it"
    if float in kinds and not all(map(math.isfinite, floats := _select(values, float))):
        bad = next(number for number in floats if not math.isfinite(number))
        return f"contains {bad}, which is not a JSON number; remove it"
    if int in kinds:
        integers = _select(values, int)
        if min(integers) not in _INTEGERS or max(integers) not in _INTEGERS:
            return "contains an integer with more than 64 bits; send it as text"
    return None


def _select(values: list[Any], kind: type[Any]) -> list[Any]:
    return [value for value in values if type(value) is kind]


class Reply(BaseModel):
    """The body of a response. Clients ignore fields that a newer server adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Health(Reply):
    """The process is alive."""

    status: Literal["ok"] = "ok"
    version: str


T = TypeVar("T")


class ListReply(Reply, Generic[T]):
    """One page of a list."""

    items: list[T]
    next: str | None
    """Pass it as `after` for the next page; null on the last page."""


class JobRange(UserRequest):
    """A request about a block range of a job."""

    dag: Name
    job: Name
    start: Block
    end: Block

    @model_validator(mode="after")
    def _check_range(self) -> "JobRange":
        check_range(self.start, self.end)
        return self


def check_range(start: int | None, end: int | None, prefix: str = "") -> None:
    """Check that both bounds are given and in order, or that neither is given. Raises ValueError."""
    if (start is None) != (end is None):
        raise ValueError(f"give both `{prefix}start` and `{prefix}end`, or neither")
    if start is not None and end is not None and end < start:
        raise ValueError(f"`{prefix}end` ({end}) must not be before `{prefix}start` ({start})")


def check_one_given(**fields: object) -> None:
    """Check that exactly one of the fields is not None. Raises ValueError."""
    if sum(value is not None for value in fields.values()) != 1:
        raise ValueError(f"give exactly one of {', '.join(f'`{name}`' for name in fields)}")


def either(first: str, second: str) -> Json:
    """Return a JSON schema that requires exactly one of two fields."""

    def only(present: str, absent: str) -> Json:
        properties = {present: {"not": {"type": "null"}}, absent: {"type": "null"}}
        return {"required": [present], "properties": properties}

    return {"oneOf": [only(first, second), only(second, first)]}


class Fenced(Request):
    """A call on behalf of a task. It names the attempt and the lease."""

    task_id: UUID
    attempt: Attempt
    lease_token: UUID

    def fence(self) -> Fence:
        return Fence(self.task_id, self.attempt, self.lease_token)
