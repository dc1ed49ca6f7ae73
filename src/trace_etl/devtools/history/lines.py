"""Read a history: JSON lines, each one a call with its response or a row of the final dump."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trace_etl.devtools.history.rows import ROW_TYPES, Dump, Row
from trace_etl.model.errors import TraceError

VERSION = 1
Moment = Annotated[float, Field(allow_inf_nan=False)]


class Unreadable(TraceError, code="unreadable_history"):
    """A line does not have the format of a history."""


class CallOutcome(StrEnum):
    """What the caller knows about the effect of its call."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    MAYBE = "maybe"
    """No response, or a server error: the call may have been executed, perhaps after its end."""
    NEVER = "never"


class RecordedAnswer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    status: int
    body: dict[str, Any] | None = None


class RecordedCall(BaseModel):
    """One call: the caller, the replica, the request, the times and the response."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    call: str
    actor: str = ""
    at: str = ""
    """Address of the replica that received the call."""
    request: dict[str, Any] = {}
    answer: RecordedAnswer | None = None
    error: str | None = None
    sent: bool = True
    """False if the error came before the request could reach the server."""
    began: Moment
    ended: Moment
    """Unix time, one clock for the whole history."""
    line: int = Field(default=0, exclude=True)

    @model_validator(mode="after")
    def _check_consistency(self) -> "RecordedCall":
        if (self.answer is None) == (self.error is None):
            raise ValueError("must have either `answer` or `error`, not both")
        if self.ended < self.began:
            raise ValueError("`ended` is before `began`")
        return self

    @property
    def outcome(self) -> CallOutcome:
        if self.answer is None:
            return CallOutcome.MAYBE if self.sent else CallOutcome.NEVER
        if self.answer.status >= 500:
            return CallOutcome.MAYBE
        return CallOutcome.ACCEPTED if self.answer.status < 300 else CallOutcome.REFUSED

    @property
    def body(self) -> dict[str, Any]:
        return (self.answer and self.answer.body) or {}

    def ended_before(self, other: "RecordedCall") -> bool:
        """Whether this call ended before the other one began."""
        return self.ended < other.began


@dataclass(frozen=True)
class History:
    calls: list[RecordedCall]
    dump: Dump | None


def parse(lines: Iterable[str]) -> History:
    """Read a history. Raises Unreadable with the line number."""
    calls: list[RecordedCall] = []
    tables: set[str] | None = None
    rows: dict[str, list[Row]] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        value = _parse_object(number, text)
        if "history" in value:
            if (version := value["history"]) != VERSION:
                raise Unreadable(
                    f"line {number}: version {version!r} is not supported, only {VERSION}"
                )
        elif "dump" in value:
            tables = _parse_tables(number, value["dump"])
        elif "table" in value:
            row = _parse_row(number, value, tables)
            rows.setdefault(row.table, []).append(row)
        else:
            calls.append(_parse_call(number, value))
    return History(calls, None if tables is None else Dump(frozenset(tables), rows))


def _parse_object(number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"line {number} is not an object")
    return cast("dict[str, Any]", value)


def _parse_tables(number: int, names: object) -> set[str]:
    if not isinstance(names, list):
        raise Unreadable(f"line {number}: `dump` must be the list of the tables that follow")
    unknown = sorted({str(n) for n in cast("list[object]", names)} - set(ROW_TYPES))
    if unknown:
        raise Unreadable(f"line {number}: unknown table {', '.join(unknown)}")
    return {str(n) for n in cast("list[object]", names)}


def _parse_row(number: int, value: dict[str, Any], tables: set[str] | None) -> Row:
    if value["table"] not in (tables or set()):
        raise Unreadable(f"line {number}: a row of {value['table']!r}, which `dump` does not list")
    try:
        fields = ROW_TYPES[value["table"]].model_validate(value.get("row"))
    except ValidationError as error:
        raise Unreadable(f"line {number}: {_format_first(error)}") from error
    return Row(number, value["table"], fields)


def _parse_call(number: int, value: dict[str, Any]) -> RecordedCall:
    try:
        return RecordedCall.model_validate({**value, "line": number})
    except ValidationError as error:
        raise Unreadable(f"line {number}: {_format_first(error)}") from error


def _format_first(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in fault['loc']) or 'call'}: {fault['msg']}"
