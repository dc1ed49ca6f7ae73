"""Bodies of the lookup of ids by their beginning."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import StringConstraints

from trace_etl.api.body import Reply

IdKind = Literal["task", "backfill", "batch", "version"]
IdPrefix = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{4}[0-9a-fA-F-]{0,32}$")]


class IdMatches(Reply):
    """The ids that begin with a prefix, a few at most."""

    ids: list[UUID]
