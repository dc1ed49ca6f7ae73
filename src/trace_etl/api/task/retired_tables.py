"""Tables of Postgres data whose generation nobody reads any more."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints

from trace_etl.api.body import Reply, Request

MAX_TABLES = 500
TableName = Annotated[str, StringConstraints(pattern=r"^dataset_[0-9a-f]{32}_[0-9a-f]{16}$")]


class TablesHeld(Request):
    """Extension: tables that a worker found in Postgres data."""

    tables: Annotated[list[TableName], Field(max_length=MAX_TABLES)]


class RetiredTables(Reply):
    """The tables of one generation of a job: dropped together or not at all."""

    tables: list[str]
    dataset_versions: list[UUID]


class TablesToDrop(Reply):
    retired: list[RetiredTables]
