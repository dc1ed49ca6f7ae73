"""Publish, rename and release the published names of a DAG."""

from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from trace_etl.dag.buffered_datasets import (
    find_producer_conflicts,
    find_role_conflicts,
    is_addition,
    make_buffered_dataset,
)
from trace_etl.model.errors import NameTaken
from trace_etl.state.db.pool import Conn

Entries = list[dict[str, Any]]
"""Published names, as `definitions.publication_entries` returns them."""

_FIND_OTHER_OWNERS = """
SELECT p.name, min(g.name), d.buffer_name IS NOT NULL
  FROM publications p JOIN datasets d USING (dataset_uuid)
  JOIN dataset_producers w ON w.dataset_uuid = p.dataset_uuid
  JOIN jobs j ON j.job_id = w.job_id JOIN dags g USING (dag_id)
 WHERE p.org_id = %(org_id)s AND p.name = ANY(%(names)s)
   AND j.dag_id IS DISTINCT FROM %(dag_id)s::uuid
 GROUP BY p.name, d.buffer_name ORDER BY p.name
"""
_FIND_OTHER_PRODUCERS = """
SELECT DISTINCT d.buffer_name, concat_ws('.', g.name, j.name), v.columns, v.unique_key,
       p.read_roles
  FROM datasets d JOIN job_outputs o USING (dataset_uuid) JOIN job_revisions r USING (revision_id)
  JOIN jobs j ON j.job_id = r.job_id AND j.active
   AND r.revision_id IN (j.revision_id, j.building_revision_id)
  JOIN dags g ON g.dag_id = j.dag_id
  JOIN dataset_versions v ON v.dataset_version = o.dataset_version
  JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE d.org_id = %(org_id)s AND d.buffer_name = ANY(%(names)s) AND v.columns IS NOT NULL
   AND j.dag_id IS DISTINCT FROM %(dag_id)s::uuid
 ORDER BY 1, 2
"""


async def require_available(
    conn: Conn, org_id: UUID, dag_id: UUID | None, entries: Entries
) -> None:
    """Raise NameTaken if other DAGs own some of the names. The message lists all of them.

    DAGs may share a buffered name if they declare the same columns, unique key and readers.
    """
    values = {"org_id": org_id, "dag_id": dag_id, "names": [e["name"] for e in entries]}
    shared = {e["name"]: e for e in entries if e["write_mode"] == "buffered"}
    rows = await (await conn.execute(_FIND_OTHER_OWNERS, values)).fetchall()
    taken = [_describe_taken(*row) for row in rows if not (row[2] and row[0] in shared)]
    if taken:
        raise NameTaken(f"publish: {'; '.join(taken)}")
    if shared:
        _require_agreement(
            shared, await (await conn.execute(_FIND_OTHER_PRODUCERS, values)).fetchall()
        )


def _describe_taken(name: str, dag: str, is_buffered: bool) -> str:
    owner = f"the name {name!r} belongs to the DAG {dag}"
    if is_buffered:
        return (
            f"{owner} and is buffered; publish it with `write_mode: buffered` to share it, "
            "or choose another name"
        )
    return f"{owner}; choose another name"


def _require_agreement(shared: dict[str, dict[str, Any]], producers: list[tuple[Any, ...]]) -> None:
    """Raise NameTaken with the fields in which the producers of a buffered name differ."""
    differences: list[str] = []
    for name, producer, columns, unique_key, read_roles in producers:
        entry = shared[name]
        declared = make_buffered_dataset(name, entry["columns"], entry.get("unique_key", []))
        other = make_buffered_dataset(name, columns, unique_key)
        conflicts = [
            *(
                (field, how)
                for field, how in find_producer_conflicts(declared, other)
                if not is_addition(declared, other, field)
            ),
            *find_role_conflicts(entry.get("read_roles"), read_roles),
        ]
        for field, how in conflicts:
            differences.append(f"{name!r} differs from {producer} in {field}: {how}")
    if differences:
        fix = "declare the same fields, or publish under another name"
        raise NameTaken(f"publish: {'; '.join(differences)}; {fix}")


_DELETE_OWN = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id)
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
"""
_INSERT = """
INSERT INTO publications (org_id, name, dataset_uuid, description, storage, write_mode, columns,
                          read_roles, hot_dataset_uuid)
SELECT %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage, e.write_mode, e.columns,
       e.read_roles, e.hot_dataset_uuid
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE e.write_mode <> 'buffered'
"""
# A buffered name exists as long as at least one DAG publishes it.
_INSERT_SHARED = """
INSERT INTO publications AS p (org_id, name, dataset_uuid, description, storage, write_mode,
                               columns, read_roles)
SELECT DISTINCT ON (e.name) %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage,
       e.write_mode, e.columns, e.read_roles
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE e.write_mode = 'buffered'
ON CONFLICT ON CONSTRAINT publications_name_per_org DO UPDATE
   SET columns = EXCLUDED.columns, read_roles = EXCLUDED.read_roles,
       description = coalesce(nullif(EXCLUDED.description, ''), p.description)
 WHERE p.dataset_uuid = EXCLUDED.dataset_uuid
"""
_DELETE_UNUSED_SHARED = """
DELETE FROM publications p USING datasets d
 WHERE p.org_id = %(org_id)s AND d.dataset_uuid = p.dataset_uuid AND d.buffer_name IS NOT NULL
   AND NOT EXISTS (SELECT FROM dataset_producers w WHERE w.dataset_uuid = p.dataset_uuid)
"""


async def publish(conn: Conn, org_id: UUID, dag_id: UUID, entries: Entries) -> None:
    """Replace all published names of a DAG by the given ones. Raises NameTaken."""
    await require_available(conn, org_id, dag_id, entries)
    values = {"org_id": org_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_DELETE_OWN, values)
    await conn.execute(_DELETE_UNUSED_SHARED, values)
    await _insert(conn, _INSERT, values)
    await _insert(conn, _INSERT_SHARED, values)


# A renamed output is published under its new name only.
_DELETE_RENAMED = """
DELETE FROM publications p USING datasets d JOIN jobs j USING (job_id),
       jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE p.dataset_uuid = d.dataset_uuid AND j.dag_id = %(dag_id)s
   AND e.dataset_uuid = p.dataset_uuid AND e.name <> p.name
   AND NOT EXISTS (SELECT FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) o
                    WHERE o.name = p.name)
"""
_UPDATE = """
UPDATE publications p
   SET description = e.description, storage = e.storage, write_mode = e.write_mode,
       columns = e.columns, read_roles = e.read_roles, hot_dataset_uuid = e.hot_dataset_uuid
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE p.org_id = %(org_id)s AND p.name = e.name AND p.dataset_uuid = e.dataset_uuid
   AND e.write_mode <> 'buffered'
"""
_INSERT_NEW = """
INSERT INTO publications (org_id, name, dataset_uuid, description, storage, write_mode, columns,
                          read_roles, hot_dataset_uuid)
SELECT %(org_id)s, e.name, e.dataset_uuid, e.description, e.storage, e.write_mode, e.columns,
       e.read_roles, e.hot_dataset_uuid
  FROM jsonb_populate_recordset(NULL::publication_entry, %(entries)s) e
 WHERE e.write_mode <> 'buffered'
   AND NOT EXISTS (SELECT FROM publications p WHERE p.dataset_uuid = e.dataset_uuid
                      OR (p.org_id = %(org_id)s AND p.name = e.name))
"""


async def publish_new(conn: Conn, org_id: UUID, dag_id: UUID, entries: Entries) -> None:
    """Publish new and renamed names at the start of a rollout. Raises NameTaken.

    Names that move to another output or disappear stay for readers until the new generations are
    built. Then `publish` replaces them.
    """
    await require_available(conn, org_id, dag_id, entries)
    values = {"org_id": org_id, "dag_id": dag_id, "entries": Jsonb(entries)}
    await conn.execute(_DELETE_RENAMED, values)
    await conn.execute(_UPDATE, values)
    await _insert(conn, _INSERT_NEW, values)
    await _insert(conn, _INSERT_SHARED, values)


async def _insert(conn: Conn, query: Any, values: dict[str, Any]) -> None:
    try:
        await conn.execute(query, values)
    except UniqueViolation as error:  # a concurrent deploy published the name first
        raise NameTaken(
            "publish: another DAG has just published one of these names; plan the deploy again"
        ) from error
