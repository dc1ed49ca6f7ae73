"""Published names of a DAG: taking them, moving them, giving them up."""

from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from trace_etl.model.errors import NameTaken
from trace_etl.state.pool import Conn

Entries = list[dict[str, Any]]

_FOREIGN = """
SELECT p.name, g.name FROM publications p JOIN datasets d USING (dataset_uuid)
  JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
 WHERE p.org_id = %(org_id)s AND p.name = ANY(%(names)s)
   AND j.dag_id IS DISTINCT FROM %(dag_id)s::uuid
 ORDER BY p.name
"""


async def check(conn: Conn, org_id: UUID, dag_id: UUID | None, entries: Entries) -> None:
    """Raises NameTaken for names that belong to other DAGs, all of them at once."""
    values = {"org_id": org_id, "dag_id": dag_id, "names": [e["name"] for e in entries]}
    taken = await (await conn.execute(_FOREIGN, values)).fetchall()
    if taken:
        told = "; ".join(f"the name {name!r} belongs to the DAG {dag}" for name, dag in taken)
        raise NameTaken(f"publish: {told}; choose another")


_DROP = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id)
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
"""
_ENTRIES = """
jsonb_to_recordset(%(entries)s) AS e (
    name text, dataset_uuid uuid, description text, storage text, write_mode text, columns jsonb)
"""
_ADD = f"""
INSERT INTO publications (org_id, name, dataset_uuid, description, storage, write_mode, columns)
SELECT %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage, e.write_mode, e.columns
  FROM {_ENTRIES}
"""


async def publish(conn: Conn, org_id: UUID, dag_id: UUID, entries: Entries) -> None:
    """Make these the DAG's names, and no others. Raises NameTaken."""
    await check(conn, org_id, dag_id, entries)
    values = {"org_id": org_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_DROP, values)
    await _add(conn, _ADD, values)


# Renamed: the output keeps its rows under the new name only.
_DROP_RENAMED = f"""
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id), {_ENTRIES}
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
   AND e.dataset_uuid = p.dataset_uuid AND e.name <> p.name
   AND NOT EXISTS (SELECT FROM {_ENTRIES.replace(" AS e ", " AS k ")} WHERE k.name = p.name)
"""
_DESCRIBE = f"""
UPDATE publications p
   SET description = e.description, storage = e.storage, write_mode = e.write_mode,
       columns = e.columns
  FROM {_ENTRIES}
 WHERE p.org_id = %(org_id)s AND p.name = e.name AND p.dataset_uuid = e.dataset_uuid
"""
_ADD_NEW = (
    _ADD
    + """
 WHERE NOT EXISTS (SELECT FROM publications p WHERE p.dataset_uuid = e.dataset_uuid
                      OR (p.org_id = %(org_id)s AND p.name = e.name))
"""
)


async def publish_new(conn: Conn, org_id: UUID, dag_id: UUID, entries: Entries) -> None:
    """Take new names and rename; names that move or go away keep what readers see of them.

    For while the new generations are built: `publish` does the rest. Raises NameTaken.
    """
    await check(conn, org_id, dag_id, entries)
    values = {"org_id": org_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_DROP_RENAMED, values)
    await conn.execute(_DESCRIBE, values)
    await _add(conn, _ADD_NEW, values)


async def _add(conn: Conn, query: Any, values: dict[str, Any]) -> None:
    try:
        await conn.execute(query, values)
    except UniqueViolation as error:  # another DAG was quicker
        raise NameTaken("publish: another DAG has just taken one of these names") from error
