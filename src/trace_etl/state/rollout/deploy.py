"""Deploy a DAG: execute a deploy plan in the caller's transaction."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.model.dag import Dag
from trace_etl.model.errors import DeployConflict, Fault, Invalid, NameInUse, RowsLost
from trace_etl.policy.deploy.deploy_plan import (
    DeployPlan,
    describe_lost_rows,
    describe_readers,
    plan_deploy,
)
from trace_etl.policy.ranges import split_range
from trace_etl.state.bundles import bundles
from trace_etl.state.catalog import buffer_columns, definitions, generations, names
from trace_etl.state.catalog.definitions import WrittenDefinition
from trace_etl.state.catalog.generations import OutputName
from trace_etl.state.db.pool import Conn
from trace_etl.state.flow import pauses
from trace_etl.state.rollout import backfill_consumers, deployed_state, retire, rollouts
from trace_etl.state.storage import retired_generations


@dataclass(frozen=True)
class VersionedPlan:
    """A deploy plan, and the version of the DAG that it starts from."""

    dag_version: UUID | None
    is_deployed: bool
    """Whether the planned text is already deployed."""
    plan: DeployPlan


@dataclass(frozen=True)
class Deployment:
    """The result of a deploy."""

    dag_id: UUID
    dag_version: UUID
    changed: bool
    plan: DeployPlan
    backfilled: list[UUID]
    """The revisions for which tasks were created, for all data that their inputs already hold."""


_TEXT = "SELECT text FROM dag_versions WHERE dag_version = %(dag_version)s"


async def plan_text(
    conn: Conn, org_id: UUID, dag: Dag, text: str, *, from_version: UUID | None = None
) -> VersionedPlan:
    """Plan a deploy of this text without changing anything. Raises Invalid, NameTaken.

    With `from_version`, plan it as if that version of the DAG were deployed.
    """
    await definitions.find_upstream(conn, org_id, dag, text)
    await bundles.require_bundles(conn, org_id, dag, text)
    deployed = await deployed_state.get_deployed_dag(conn, org_id, dag, from_version)
    entries = [
        {
            "name": entry.name,
            "write_mode": entry.write_mode,
            "columns": [asdict(column) for column in entry.columns or ()],
            "unique_key": list(dag.job(entry.job).unique_key),
            "read_roles": entry.read_roles,
        }
        for entry in dag.publish
    ]
    await names.require_available(conn, org_id, deployed.dag_id, entries)
    dag, added = await buffer_columns.keep_generations(conn, org_id, dag, text, is_deploy=False)
    row = await (await conn.execute(_TEXT, {"dag_version": deployed.dag_version})).fetchone()
    is_deployed = row is not None and row[0] == text
    return VersionedPlan(
        deployed.dag_version,
        is_deployed,
        replace(
            plan_deploy(deployed.jobs, deployed.published, dag, deployed.readers),
            added_columns=added,
        ),
    )


_UPSERT_DAG = """
INSERT INTO dags (org_id, name) VALUES (%(org_id)s, %(name)s)
ON CONFLICT ON CONSTRAINT dags_name_per_org
DO UPDATE SET name = EXCLUDED.name, removed_at = NULL, removed_name = NULL, keeps_data = false
RETURNING dag_id
"""
_UPSERT_VERSION = """
INSERT INTO dag_versions (dag_id, text_sha256, text) VALUES (%(dag_id)s, %(sha)s, %(text)s)
ON CONFLICT ON CONSTRAINT dag_versions_text DO UPDATE SET text = EXCLUDED.text
RETURNING dag_version
"""


async def deploy(
    conn: Conn,
    org_id: UUID,
    dag: Dag,
    text: str,
    *,
    base: UUID | None,
    allow_breaking: bool = False,
    columns: Mapping[OutputName, list[dict[str, str]]] | None = None,
) -> Deployment:
    """Deploy this text if the DAG is still at version `base`. The same text changes nothing.

    `columns` are the columns of outputs that are already known. `allow_breaking` removes names that other
    DAGs read, and appended rows that cannot be made again. Raises Invalid, NameTaken, NameInUse, RowsLost,
    DeployConflict.
    """
    _require_outputs(dag, columns or {})
    await rollouts.lock(conn, org_id, dag.name)
    dag_id: UUID = await _fetch_value(conn, _UPSERT_DAG, {"org_id": org_id, "name": dag.name})
    sha = hashlib.sha256(text.encode()).digest()
    version: UUID = await _fetch_value(
        conn, _UPSERT_VERSION, {"dag_id": dag_id, "sha": sha, "text": text}
    )
    deployed = await deployed_state.get_deployed_dag(conn, org_id, dag)
    dag, added = await buffer_columns.keep_generations(conn, org_id, dag, text, is_deploy=True)
    planned = replace(
        plan_deploy(deployed.jobs, deployed.published, dag, deployed.readers), added_columns=added
    )
    if deployed.dag_version == version:
        return Deployment(dag_id, version, False, planned, [])
    if deployed.dag_version != base:
        raise DeployConflict(
            f"the DAG {dag.name} was deployed meanwhile: its version is {deployed.dag_version}, not "
            f"{base}; plan the deploy again"
        )
    if planned.breaking and not allow_breaking:
        raise NameInUse(describe_readers(planned.breaking))
    if planned.losing_rows and not allow_breaking:
        raise RowsLost(describe_lost_rows(planned.losing_rows))
    written = await definitions.write_definition(conn, org_id, dag_id, dag, text)
    columns_by_version = {
        written.version_of(output): output_columns
        for output, output_columns in (columns or {}).items()
    }
    await generations.record_columns(conn, columns_by_version)
    backfilled = await _execute(conn, org_id, dag_id, version, dag, written, planned)
    return Deployment(dag_id, version, True, planned, backfilled)


def _require_outputs(dag: Dag, columns: Mapping[OutputName, list[dict[str, str]]]) -> None:
    """Raise Invalid if columns are given for something that is not an output of the DAG."""
    outputs = {(job.name, output) for job in dag.jobs for output in job.outputs}
    faults = [
        Fault(
            f"columns[{n}]", f"{job}.{output} is not an output of this DAG; leave out its columns"
        )
        for n, (job, output) in enumerate(columns)
        if (job, output) not in outputs
    ]
    if faults:
        raise Invalid(faults)


_RECORD_PUBLICATIONS = """
UPDATE dag_versions SET publications = %(entries)s, notifications = %(rules)s
 WHERE dag_version = %(dag_version)s
"""
_RECORD_JOBS = """
INSERT INTO dag_version_jobs (dag_version, job_id, revision_id)
SELECT %(dag_version)s, * FROM unnest(%(job_ids)s::uuid[], %(revision_ids)s::uuid[])
ON CONFLICT (dag_version, job_id) DO UPDATE SET revision_id = EXCLUDED.revision_id
"""


async def _execute(
    conn: Conn,
    org_id: UUID,
    dag_id: UUID,
    version: UUID,
    dag: Dag,
    written: WrittenDefinition,
    planned: DeployPlan,
) -> list[UUID]:
    entries = definitions.publication_entries(dag, written)
    rules = [asdict(rule) for rule in dag.notify]
    await conn.execute(
        _RECORD_PUBLICATIONS,
        {"dag_version": version, "entries": Jsonb(entries), "rules": Jsonb(rules)},
    )
    await conn.execute(
        _RECORD_JOBS,
        {
            "dag_version": version,
            "job_ids": [written.jobs[name] for name in written.revisions],
            "revision_ids": list(written.revisions.values()),
        },
    )
    await retired_generations.restore(conn, list(written.revisions.values()))
    await _set_pointers(conn, dag_id, planned, written)
    added = [written.jobs[job.name] for job in planned.jobs if job.change == "added"]
    await pauses.pause_added_jobs(conn, dag_id, added)
    rollout_id = await rollouts.begin(conn, dag_id, version, building=planned.builds)
    await rollouts.switch_version(conn, dag_id, version)
    if planned.builds:
        await names.publish_new(conn, org_id, dag_id, entries)
        await rollouts.record_targets(conn, rollout_id, dag_id, entries)
    else:
        await retire.retire_jobs(conn, dag_id, version)
        await names.publish(conn, org_id, dag_id, entries)
    await _refuse_cycles(conn, list(written.revisions.values()))
    await retire.retire_tasks(conn, dag_id)
    await retire.requeue_tasks(conn, dag_id)
    return await _create_tasks(conn, dag_id, dag, planned, written)


_CLEAR_JOBS = """
UPDATE jobs SET building_revision_id = NULL
 WHERE dag_id = %(dag_id)s AND building_revision_id IS NOT NULL
"""
_POINT_JOBS = """
UPDATE jobs j SET active = true,
       revision_id = CASE WHEN w.building THEN j.revision_id ELSE w.revision_id END,
       building_revision_id = CASE WHEN w.building THEN w.revision_id END
  FROM unnest(%(job_ids)s::uuid[], %(revision_ids)s::uuid[], %(building)s::boolean[])
       AS w (job_id, revision_id, building)
 WHERE j.job_id = w.job_id
"""
# A new output becomes current immediately, even if its job is being built: there are no older rows to
# serve. A buffered dataset also becomes current immediately, because its generation depends only on the
# declared columns.
_POINT_DATASETS = """
UPDATE datasets d
   SET dataset_version = CASE WHEN w.building AND d.dataset_version IS NOT NULL
                               AND d.job_id IS NOT NULL
                              THEN d.dataset_version ELSE o.dataset_version END,
       building_version = CASE WHEN w.building AND d.dataset_version <> o.dataset_version
                                AND d.job_id IS NOT NULL
                               THEN o.dataset_version END
  FROM unnest(%(revision_ids)s::uuid[], %(building)s::boolean[]) AS w (revision_id, building)
  JOIN job_outputs o USING (revision_id)
 WHERE d.dataset_uuid = o.dataset_uuid
"""


async def _set_pointers(
    conn: Conn, dag_id: UUID, planned: DeployPlan, written: WrittenDefinition
) -> None:
    """Point each job at its new revision: as current, or as being built, as the plan says."""
    remaining = [job for job in planned.jobs if job.action != "retire"]
    values = {
        "job_ids": [written.jobs[job.name] for job in remaining],
        "revision_ids": [written.revisions[job.name] for job in remaining],
        "building": [job.action == "build" for job in remaining],
    }
    await conn.execute(_CLEAR_JOBS, {"dag_id": dag_id})
    await rollouts.clear_building_datasets(conn, dag_id)
    await conn.execute(_POINT_JOBS, values)
    await conn.execute(_POINT_DATASETS, values)


async def _create_tasks(
    conn: Conn, dag_id: UUID, dag: Dag, planned: DeployPlan, written: WrittenDefinition
) -> list[UUID]:
    """Create tasks for everything that the inputs of new generations hold. Returns the revisions."""
    new = [
        written.revisions[job.name]
        for job in planned.jobs
        if job.has_new_generation or job.change == "added"
    ]
    await backfill_consumers.emit_again(conn, new)
    await backfill_consumers.backfill(conn, new)
    ranges: list[tuple[UUID, int, int]] = []
    for job in dag.jobs:
        if bootstrap := job.bootstrap:
            pieces = split_range(
                bootstrap.start,
                bootstrap.end,
                bootstrap.chunk or bootstrap.end - bootstrap.start + 1,
            )
            ranges += [(written.jobs[job.name], *piece) for piece in pieces]
    if ranges:
        await backfill_consumers.bootstrap(conn, ranges)
    return new


_FIND_CYCLES = """
WITH RECURSIVE walk (origin, job_id) AS (
    SELECT r.job_id, d.job_id
      FROM job_inputs i JOIN job_revisions r USING (revision_id)
      JOIN dataset_producers d USING (dataset_uuid) JOIN datasets s USING (dataset_uuid)
     WHERE i.revision_id = ANY(%(revision_ids)s)
       AND (i.dataset_version IS NULL OR s.buffer_name IS NOT NULL)
     UNION
    SELECT w.origin, d.job_id
      FROM walk w JOIN jobs j ON j.job_id = w.job_id AND j.active
      JOIN job_inputs i ON i.revision_id IN (j.revision_id, j.building_revision_id)
      JOIN dataset_producers d USING (dataset_uuid)
)
SELECT DISTINCT j.name FROM walk w JOIN jobs j ON j.job_id = w.origin WHERE w.job_id = w.origin
 ORDER BY j.name
"""


async def _refuse_cycles(conn: Conn, revision_ids: list[UUID]) -> None:
    """Raise Invalid if a job reads its own output through datasets of other DAGs."""
    rows = await (await conn.execute(_FIND_CYCLES, {"revision_ids": revision_ids})).fetchall()
    if rows:
        rule = "waits for its own output through a dataset of another DAG"
        raise Invalid([Fault(f"job {name}", rule) for (name,) in rows])


async def _fetch_value(conn: Conn, query: Any, values: dict[str, Any]) -> Any:
    row = await (await conn.execute(query, values)).fetchone()
    if row is None:
        raise LookupError("the statement returned no row")
    return row[0]
