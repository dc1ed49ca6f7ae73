"""Bodies of the call that asks which tables of Postgres data may be dropped."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints

from trace_etl.api.body import Reply, Request

MAX_TABLES = 500
TableName = Annotated[str, StringConstraints(pattern=r"^dataset_[0-9a-f]{32}_[0-9a-f]{16}$")]


class TablesHeld(Request):
    """Extension: tables that the sink found in Postgres data."""

    tables: Annotated[list[TableName], Field(max_length=MAX_TABLES)]


class RetiredTables(Reply):
    """The tables of one generation of a job. They are dropped together or not at all."""

    tables: list[str]
    dataset_versions: list[UUID]


class TablesToDrop(Reply):
    retired: list[RetiredTables]
