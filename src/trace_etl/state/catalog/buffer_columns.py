"""Additive changes of buffered datasets: a new nullable column keeps the generation and its rows."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.dag.buffered_datasets import find_buffered_outputs, make_buffered_dataset
from trace_etl.dag.positions import Located, locate
from trace_etl.model.dag import Dag, Publication
from trace_etl.model.deploy_plan import AddedColumn
from trace_etl.model.errors import Fault, Invalid
from trace_etl.policy.deploy.buffer_columns import ColumnChange, find_column_changes
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_dicts

# Batches and events are deleted after their retention, so an old generation counts as written.
_FIND_CURRENT = """
SELECT d.buffer_name AS name, v.generation_hash, v.columns, v.unique_key,
       coalesce(p.columns, '[]') AS published,
       v.created_at < now() - interval '1 day'
       OR EXISTS (SELECT FROM buffer_publishes b
                   WHERE b.dataset_uuid = d.dataset_uuid AND b.dataset_version = v.dataset_version)
       OR EXISTS (SELECT FROM events e WHERE e.dataset_version = v.dataset_version) AS has_rows
  FROM datasets d JOIN dataset_versions v ON v.dataset_version = d.dataset_version
  JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE d.org_id = %(org_id)s AND d.buffer_name = ANY(%(names)s) AND v.columns IS NOT NULL
"""
_LOCK = """
SELECT FROM datasets WHERE org_id = %(org_id)s AND buffer_name = ANY(%(names)s)
 ORDER BY buffer_name FOR UPDATE
"""


async def keep_generations(
    conn: Conn, org_id: UUID, dag: Dag, text: str, *, is_deploy: bool
) -> tuple[Dag, list[AddedColumn]]:
    """Return the DAG with the generations that its buffered datasets keep, and the columns it adds.

    Raises Invalid for a change that the rows of a dataset do not allow. A deploy locks the datasets, so that
    two deploys cannot add one column with different types.
    """
    declared = find_buffered_outputs(dag)
    values = {"org_id": org_id, "names": sorted({dataset.name for dataset in declared.values()})}
    if not values["names"]:
        return dag, []
    if is_deploy:
        await conn.execute(_LOCK, values)
    current = {row["name"]: row for row in await fetch_dicts(conn, _FIND_CURRENT, values)}
    located, faults = locate(text), list[Fault]()
    publish: list[Publication] = []
    added: dict[str, list[AddedColumn]] = {}
    for n, entry in enumerate(dag.publish):
        row = current.get(entry.name)
        dataset = declared.get((entry.job, entry.output))
        if row is None or dataset is None:
            publish.append(entry)
            continue
        stored = make_buffered_dataset(entry.name, row["columns"], row["unique_key"])
        change = find_column_changes(dataset, stored, [c["name"] for c in row["published"]])
        if row["has_rows"]:
            faults += _make_faults(located, n, entry, change)
        # Without rows, a change that is not additive starts another generation.
        kept = None if change.problems else row["generation_hash"]
        publish.append(replace(entry, generation=kept))
        if not change.problems:
            added[entry.name] = [AddedColumn(entry.name, c.name, c.type) for c in change.added]
    if faults:
        raise Invalid(faults)
    return replace(dag, publish=tuple(publish)), [c for columns in added.values() for c in columns]


def _make_faults(located: Located, n: int, entry: Publication, change: ColumnChange) -> list[Fault]:
    names = [column.name for column in entry.columns or ()]
    faults: list[Fault] = []
    for column, problem in change.problems:
        inside = ("schema", names.index(column)) if column in names else ("schema",)
        path = ("publish", n, *(inside if column is not None else ()))
        what = f"{column!r} {problem}" if column is not None else problem
        rule = f"{what}, but {entry.name!r} has rows; only nullable columns can be added"
        faults.append(
            located.fault(path, f"{rule}. Undo this change, or publish under another name")
        )
    return faults


_ADD_COLUMNS = """
UPDATE dataset_versions v SET columns = v.columns || n.columns
  FROM jsonb_to_recordset(%(rows)s) AS w (dataset_uuid uuid, generation_hash text, columns jsonb)
 CROSS JOIN LATERAL (SELECT dataset_version, columns AS stored FROM dataset_versions o
                      WHERE o.dataset_uuid = w.dataset_uuid
                        AND o.generation_hash = w.generation_hash) o
 CROSS JOIN LATERAL (
       SELECT jsonb_agg(c) AS columns FROM jsonb_array_elements(w.columns) c
        WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(o.stored) k
                           WHERE k ->> 'name' = c ->> 'name')) n
 WHERE v.dataset_version = o.dataset_version AND n.columns IS NOT NULL
"""


async def add_columns(conn: Conn, rows: list[dict[str, Any]]) -> None:
    """Add the missing columns of generations. The sink adds them to the table with the next batch."""
    distinct = {(row["dataset_uuid"], row["generation_hash"]): row for row in rows}
    chosen = [row for row in distinct.values() if row.get("columns")]
    if chosen:
        await conn.execute(_ADD_COLUMNS, {"rows": Jsonb(chosen)})
