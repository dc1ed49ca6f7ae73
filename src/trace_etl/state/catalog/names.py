"""Published names of a DAG: taking them, moving them, giving them up."""

from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from trace_etl.dag.buffered_datasets import buffer, disagreements
from trace_etl.model.errors import NameTaken
from trace_etl.state.db.pool import Conn

Entries = list[dict[str, Any]]

_FOREIGN = """
SELECT p.name, min(g.name), d.buffer_name IS NOT NULL
  FROM publications p JOIN datasets d USING (dataset_uuid)
  JOIN dataset_producers w ON w.dataset_uuid = p.dataset_uuid
  JOIN jobs j ON j.job_id = w.job_id JOIN dags g USING (dag_id)
 WHERE p.org_id = %(org_id)s AND p.name = ANY(%(names)s)
   AND j.dag_id IS DISTINCT FROM %(dag_id)s::uuid
 GROUP BY p.name, d.buffer_name ORDER BY p.name
"""
_PRODUCERS = """
SELECT DISTINCT d.buffer_name, concat_ws('.', g.name, j.name), v.columns, v.unique_key
  FROM datasets d JOIN job_outputs o USING (dataset_uuid) JOIN job_revisions r USING (revision_id)
  JOIN jobs j ON j.job_id = r.job_id AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id)
  JOIN dags g ON g.dag_id = j.dag_id
  JOIN dataset_versions v ON v.dataset_version = o.dataset_version
 WHERE d.org_id = %(org_id)s AND d.buffer_name = ANY(%(names)s) AND v.columns IS NOT NULL
   AND j.dag_id IS DISTINCT FROM %(dag_id)s::uuid
 ORDER BY 1, 2
"""


async def check(conn: Conn, org_id: UUID, dag_id: UUID | None, entries: Entries) -> None:
    """Raises NameTaken for names that other DAGs have, all of them at once.

    A buffered name may be theirs as well, if they say the same of it.
    """
    values = {"org_id": org_id, "dag_id": dag_id, "names": [e["name"] for e in entries]}
    shared = {e["name"]: e for e in entries if e["write_mode"] == "buffered"}
    rows = await (await conn.execute(_FOREIGN, values)).fetchall()
    taken = [_taken(*row) for row in rows if not (row[2] and row[0] in shared)]
    if taken:
        raise NameTaken(f"publish: {'; '.join(taken)}")
    if shared:
        _agree(shared, await (await conn.execute(_PRODUCERS, values)).fetchall())


def _taken(name: str, dag: str, is_buffered: bool) -> str:
    told = f"the name {name!r} belongs to the DAG {dag}"
    if is_buffered:
        return f"{told} and is buffered; share it with `write_mode: buffered`, or choose another"
    return f"{told}; choose another"


def _agree(shared: dict[str, dict[str, Any]], producers: list[tuple[Any, ...]]) -> None:
    """Raises NameTaken naming the fields in which producers of one name differ."""
    wrong: list[str] = []
    for name, producer, columns, unique_key in producers:
        mine = buffer(name, shared[name]["columns"], shared[name].get("unique_key", []))
        for field, how in disagreements(mine, buffer(name, columns, unique_key)):
            wrong.append(f"{name!r} differs from what {producer} publishes in {field}: {how}")
    if wrong:
        fix = "make them the same, or publish under another name"
        raise NameTaken(f"publish: {'; '.join(wrong)}; {fix}")


_DROP = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id)
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
"""
_ADD = """
INSERT INTO publications (org_id, name, dataset_uuid, description, storage, write_mode, columns)
SELECT %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage, e.write_mode, e.columns
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE e.write_mode <> 'buffered'
"""
# The name is there as long as somebody writes it, whoever came first.
_SHARE = """
INSERT INTO publications AS p (org_id, name, dataset_uuid, description, storage, write_mode,
                               columns)
SELECT DISTINCT ON (e.name) %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage,
       e.write_mode, e.columns
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE e.write_mode = 'buffered'
ON CONFLICT ON CONSTRAINT publications_name_per_org DO UPDATE
   SET columns = EXCLUDED.columns,
       description = coalesce(nullif(EXCLUDED.description, ''), p.description)
 WHERE p.dataset_uuid = EXCLUDED.dataset_uuid
"""
_UNSHARE = """
DELETE FROM publications p USING datasets d
 WHERE p.org_id = %(org_id)s AND d.dataset_uuid = p.dataset_uuid AND d.buffer_name IS NOT NULL
   AND NOT EXISTS (SELECT FROM dataset_producers w WHERE w.dataset_uuid = p.dataset_uuid)
"""


async def publish(conn: Conn, org_id: UUID, dag_id: UUID, entries: Entries) -> None:
    """Make these the DAG's names, and no others. Raises NameTaken."""
    await check(conn, org_id, dag_id, entries)
    values = {"org_id": org_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_DROP, values)
    await conn.execute(_UNSHARE, values)
    await _add(conn, _ADD, values)
    await _add(conn, _SHARE, values)


# Renamed: the output keeps its rows under the new name only.
_DROP_RENAMED = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id),
       jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
   AND e.dataset_uuid = p.dataset_uuid AND e.name <> p.name
   AND NOT EXISTS (SELECT FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) kept
                    WHERE kept.name = p.name)
"""
_DESCRIBE = """
UPDATE publications p
   SET description = e.description, storage = e.storage, write_mode = e.write_mode,
       columns = e.columns
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE p.org_id = %(org_id)s AND p.name = e.name AND p.dataset_uuid = e.dataset_uuid
   AND e.write_mode <> 'buffered'
"""
_ADD_NEW = """
INSERT INTO publications (org_id, name, dataset_uuid, description, storage, write_mode, columns)
SELECT %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage, e.write_mode, e.columns
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE e.write_mode <> 'buffered'
   AND NOT EXISTS (SELECT FROM publications p WHERE p.dataset_uuid = e.dataset_uuid
                      OR (p.org_id = %(org_id)s AND p.name = e.name))
"""


async def publish_new(conn: Conn, org_id: UUID, dag_id: UUID, entries: Entries) -> None:
    """Take new names and rename; names that move or go away keep what readers see of them.

    For while the new generations are built: `publish` does the rest. Raises NameTaken.
    """
    await check(conn, org_id, dag_id, entries)
    values = {"org_id": org_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_DROP_RENAMED, values)
    await conn.execute(_DESCRIBE, values)
    await _add(conn, _ADD_NEW, values)
    await _add(conn, _SHARE, values)


async def _add(conn: Conn, query: Any, values: dict[str, Any]) -> None:
    try:
        await conn.execute(query, values)
    except UniqueViolation as error:  # another DAG was quicker
        raise NameTaken("publish: another DAG has just taken one of these names") from error
