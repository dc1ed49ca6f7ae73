"""Ids of tasks and events are generated in order, so new rows are at the end of every index."""

import pytest

from support.services.postgres import sql
from trace_etl.lite.postgres.databases import Dsns

_DEFAULT = """
SELECT column_default FROM information_schema.columns
 WHERE table_name = %s AND column_name = %s
"""


@pytest.mark.parametrize(("table", "column"), [("tasks", "task_id"), ("events", "event_id")])
def test_ids_are_ordered_when_the_server_supports_uuidv7(
    dsns: Dsns, table: str, column: str
) -> None:
    [(version,)] = sql(dsns.state, "SELECT current_setting('server_version_num')::int")
    expected = "uuidv7()" if version >= 180_000 else "gen_random_uuid()"
    assert sql(dsns.state, _DEFAULT, (table, column)) == [(expected,)]
