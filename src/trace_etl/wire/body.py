"""How every body behaves: immutable, and strict about fields it does not know."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from trace_etl.model.scope import MAX_BLOCK

Block = Annotated[int, Field(ge=0, le=MAX_BLOCK)]
Json = dict[str, Any]


class Request(BaseModel):
    """What callers send. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reply(BaseModel):
    """What we answer. Readers ignore fields that a newer server adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def either(this: str, that: str) -> Json:
    """JSON schema: one of two fields, and not both."""

    def only(given: str, other: str) -> Json:
        given_only = {given: {"not": {"type": "null"}}, other: {"type": "null"}}
        return {"required": [given], "properties": given_only}

    return {"oneOf": [only(this, that), only(that, this)]}
