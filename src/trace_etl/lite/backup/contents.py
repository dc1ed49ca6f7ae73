"""What the databases of a snapshot contain and refer to, and new places of their objects."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from trace_etl.lite.backup.manifest import DatasetSummary, TableSummary

Conn = psycopg.Connection[dict[str, Any]]

_SWEEP_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('trace.storage_sweep', 0)) AS is_held"


def connect(dsn: str) -> Conn:
    """Open a connection whose rows are dictionaries."""
    return Conn.connect(dsn, autocommit=True, row_factory=dict_row)


def hold_sweeps(conn: Conn) -> bool:
    """Keep the Dispatcher from deleting objects while this connection is open. False if another process does."""
    row = conn.execute(_SWEEP_LOCK).fetchone()
    return bool(row and row["is_held"])


@dataclass(frozen=True)
class StoredPrefix:
    """The objects of a committed attempt."""

    org_id: str
    scheme: str
    bucket: str
    prefix: str


@dataclass(frozen=True)
class StoredBatch:
    """The artifact of a published batch."""

    org_id: str
    batch_uri: str


@dataclass(frozen=True)
class Contents:
    """What a snapshot contains."""

    migrations: list[str]
    orgs: list[str]
    datasets: list[DatasetSummary]
    tables: list[TableSummary]
    prefixes: list[StoredPrefix]
    batches: list[StoredBatch]


_MIGRATIONS = "SELECT name FROM schema_migrations ORDER BY name"
_ORGS = "SELECT org_id::text FROM orgs ORDER BY 1"
# Neither the bucket nor the scheme is part of the digest: a restore may move the objects.
_DATASETS = """
SELECT d.org_id::text, j.name || '.' || d.output_name AS dataset, v.dataset_version::text,
       v.dataset_version IS NOT DISTINCT FROM d.dataset_version AS is_current,
       count(p.partition_key)::bigint AS partitions, coalesce(sum(p.row_count), 0)::bigint AS rows,
       coalesce(sum(p.byte_count), 0)::bigint AS bytes,
       md5(coalesce(string_agg(concat_ws(' ', p.partition_key, p.range_start, p.range_end, p.row_count,
                    p.byte_count, p.storage_ref->>'prefix', p.storage_ref->>'table'),
                    E'\\n' ORDER BY p.partition_key), '')) AS digest
  FROM dataset_versions v
  JOIN datasets d USING (dataset_uuid)
  JOIN jobs j USING (job_id)
  LEFT JOIN partitions p ON p.dataset_version = v.dataset_version
 GROUP BY d.dataset_uuid, j.job_id, v.dataset_version
 ORDER BY 1, 2, 3
"""
_PREFIXES = """
SELECT DISTINCT d.org_id::text, p.storage_ref->>'scheme' AS scheme, p.storage_ref->>'bucket' AS bucket,
       p.storage_ref->>'prefix' AS prefix
  FROM partitions p JOIN dataset_versions v USING (dataset_version) JOIN datasets d USING (dataset_uuid)
 WHERE p.storage_ref ? 'prefix' ORDER BY 4
"""
_BATCHES = """
SELECT DISTINCT org_id::text, batch_uri FROM buffer_publishes WHERE swept_at IS NULL ORDER BY 2
"""
_TABLES = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
# The sum does not depend on the order of the rows.
_DIGEST = """
SELECT count(*)::bigint AS rows, coalesce(sum(hashtextextended(t::text, 0)), 0)::text AS digest FROM {} t
"""


def describe(state: Conn, data: Conn) -> Contents:
    """Describe both databases of a server that nothing else uses."""
    return Contents(
        migrations=_list_names(state, _MIGRATIONS, "name"),
        orgs=_list_names(state, _ORGS, "org_id"),
        datasets=[DatasetSummary(**row) for row in state.execute(_DATASETS)],
        tables=[_describe_table(data, name) for name in _list_names(data, _TABLES, "name")],
        prefixes=[StoredPrefix(**row) for row in state.execute(_PREFIXES)],
        batches=[StoredBatch(**row) for row in state.execute(_BATCHES)],
    )


def _list_names(conn: Conn, query: LiteralString, column: str) -> list[str]:
    return [row[column] for row in conn.execute(query)]


def _describe_table(conn: Conn, name: str) -> TableSummary:
    row = conn.execute(sql.SQL(_DIGEST).format(sql.Identifier(name))).fetchone()
    assert row is not None
    return TableSummary(name, **row)


# Triggers stay off: a moved object is not a superseded one.
_NO_TRIGGERS = "SET LOCAL session_replication_role = replica"
_MOVE_PARTITIONS = """
UPDATE partitions p
   SET storage_ref = p.storage_ref || jsonb_build_object('scheme', %(scheme)s::text, 'bucket', %(root)s::text)
  FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
 WHERE v.dataset_version = p.dataset_version AND d.org_id = %(org_id)s AND p.storage_ref ? 'prefix'
"""
_MOVE_BATCHES = """
UPDATE buffer_publishes
   SET batch_uri = 's3://' || %(root)s || substr(batch_uri, strpos(batch_uri, '/buffers/'))
 WHERE org_id = %(org_id)s AND strpos(batch_uri, '/buffers/') > 0
"""
# Their objects are not part of a backup.
_FORGET_UNUSED = "DELETE FROM unused_prefixes"
# Consumers may have read changes after the backup: their cursors must not be valid for other changes. A
# backup of an older release has no delivery log.
_START_OTHER_LOG = """
DO $$
BEGIN
    IF to_regclass('delivery_log') IS NOT NULL THEN
        UPDATE delivery_log SET log_id = DEFAULT;
    END IF;
END
$$
"""


def move_objects(state: Conn, scheme: str, roots: Iterable[tuple[str, str]]) -> None:
    """Refer to the objects of each organisation at its new root. The caller is a superuser.

    Cursors of the delivery log are no longer valid.
    """
    with state.transaction():
        state.execute(_NO_TRIGGERS)
        for org_id, root in roots:
            values = {"scheme": scheme, "root": root, "org_id": org_id}
            state.execute(_MOVE_PARTITIONS, values)
            state.execute(_MOVE_BATCHES, values)
        state.execute(_FORGET_UNUSED)
        state.execute(_START_OTHER_LOG)
