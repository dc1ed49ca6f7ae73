"""The format: JSON lines, each a call with its answer, or a row of the final dump."""

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


class Unreadable(TraceError):
    """A line that is not of this format."""

    code = "unreadable_history"


class Outcome(StrEnum):
    """What a caller can know of its call."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    MAYBE = "maybe"
    """No answer, or one that does not say: it may have happened, now or a little later."""
    NEVER = "never"


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    status: int
    body: dict[str, Any] | None = None


class Call(BaseModel):
    """One call: who asked whom for what, when, and what came back."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    call: str
    actor: str = ""
    at: str = ""
    """Whom it was sent to: a replica's address."""
    request: dict[str, Any] = {}
    answer: Answer | None = None
    error: str | None = None
    sent: bool = True
    """False: the error came before anything could have reached the other side."""
    began: Moment
    ended: Moment
    """Unix time, one clock for the whole history."""
    line: int = Field(default=0, exclude=True)

    @model_validator(mode="after")
    def _makes_sense(self) -> "Call":
        if (self.answer is None) == (self.error is None):
            raise ValueError("give an `answer` or an `error`, one of them")
        if self.ended < self.began:
            raise ValueError("`ended` is before `began`")
        return self

    @property
    def outcome(self) -> Outcome:
        if self.answer is None:
            return Outcome.MAYBE if self.sent else Outcome.NEVER
        if self.answer.status >= 500:
            return Outcome.MAYBE
        return Outcome.ACCEPTED if self.answer.status < 300 else Outcome.REFUSED

    @property
    def body(self) -> dict[str, Any]:
        return (self.answer and self.answer.body) or {}

    def surely_before(self, other: "Call") -> bool:
        """Whether this was over before the other began."""
        return self.ended < other.began


@dataclass(frozen=True)
class History:
    calls: list[Call]
    dump: Dump | None


def parse(lines: Iterable[str]) -> History:
    """Read a history. Raises Unreadable, naming the line."""
    calls: list[Call] = []
    tables: set[str] | None = None
    rows: dict[str, list[Row]] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        value = _object(number, text)
        if "history" in value:
            _check_version(number, value["history"])
        elif "dump" in value:
            tables = _tables(number, value["dump"])
        elif "table" in value:
            row = _row(number, value, tables)
            rows.setdefault(row.table, []).append(row)
        else:
            calls.append(_call(number, value))
    return History(calls, None if tables is None else Dump(frozenset(tables), rows))


def _object(number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"line {number} is not an object")
    return cast("dict[str, Any]", value)


def _check_version(number: int, version: object) -> None:
    if version != VERSION:
        raise Unreadable(f"line {number}: version {version!r} is not known, only {VERSION}")


def _tables(number: int, names: object) -> set[str]:
    if not isinstance(names, list):
        raise Unreadable(f"line {number}: `dump` lists the tables that follow")
    unknown = sorted({str(n) for n in cast("list[object]", names)} - set(ROW_TYPES))
    if unknown:
        raise Unreadable(f"line {number}: no table {', '.join(unknown)} is known")
    return {str(n) for n in cast("list[object]", names)}


def _row(number: int, value: dict[str, Any], tables: set[str] | None) -> Row:
    if value["table"] not in (tables or set()):
        raise Unreadable(f"line {number}: a row of {value['table']!r}, which no `dump` announced")
    try:
        fields = ROW_TYPES[value["table"]].model_validate(value.get("row"))
    except ValidationError as error:
        raise Unreadable(f"line {number}: {_first(error)}") from error
    return Row(number, value["table"], fields)


def _call(number: int, value: dict[str, Any]) -> Call:
    try:
        return Call.model_validate({**value, "line": number})
    except ValidationError as error:
        raise Unreadable(f"line {number}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in fault['loc']) or 'call'}: {fault['msg']}"
