"""Read revisions: the immutable definitions of jobs that tasks run. Callers may cache them."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import fetch_all


@dataclass(frozen=True)
class RevisionInput:
    """An edge from a dataset to a job."""

    input_index: int
    name: str
    dataset_uuid: UUID
    where: dict[str, Any] | None
    dataset_version: UUID | None
    """The generation that an edge inside the DAG reads. None reads the current generation."""
    time_column: str | None = None
    """The time of a row, in a job with time partitions."""


@dataclass(frozen=True)
class RevisionOutput:
    """An output of a job and the generation that it writes."""

    output_index: int
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    columns: list[dict[str, Any]] | None = None
    """The declared columns of a buffered dataset."""


@dataclass(frozen=True)
class Revision:
    """The definition of a job, with its inputs and outputs."""

    revision_id: UUID
    org_id: UUID
    dag_name: str
    job_name: str
    operator: str
    runtime: str
    config: dict[str, Any]
    update_strategy: str
    execution_strategy: str
    unique_key: list[str]
    partition_by: str | None
    secrets: list[str]
    udf: dict[str, str] | None
    checks: list[dict[str, Any]] | None
    inputs: tuple[RevisionInput, ...]
    outputs: tuple[RevisionOutput, ...]


@dataclass(frozen=True)
class Producer:
    """The part of a definition that decides where the rows of a generation are stored."""

    dataset_version: UUID
    operator: str
    update_strategy: str


_PRODUCERS = """
SELECT DISTINCT ON (o.dataset_version) o.dataset_version, r.operator, r.update_strategy
  FROM dataset_versions v
  JOIN job_outputs o ON o.dataset_uuid = v.dataset_uuid AND o.dataset_version = v.dataset_version
  JOIN job_revisions r ON r.revision_id = o.revision_id
 WHERE v.dataset_version = ANY(%(versions)s)
"""


async def find_producers(conn: Conn, versions: list[UUID]) -> dict[UUID, Producer]:
    """Return the producers of generations. A generation without one has no entry."""
    rows = await fetch_all(conn, Producer, _PRODUCERS, {"versions": versions})
    return {row.dataset_version: row for row in rows}


_REVISION = """
SELECT g.org_id, g.name, j.name, r.operator, r.runtime, r.config, r.update_strategy,
       r.execution_strategy, r.unique_key, r.partition_by, r.secrets, r.udf, r.checks
  FROM job_revisions r JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
 WHERE r.revision_id = %(revision_id)s
"""
_INPUTS = """
SELECT input_index, name, dataset_uuid, where_map, dataset_version, time_column FROM job_inputs
 WHERE revision_id = %(revision_id)s AND reads ORDER BY input_index
"""
_OUTPUTS = """
SELECT o.output_index, o.name, o.dataset_uuid, o.dataset_version, v.columns
  FROM job_outputs o JOIN dataset_versions v USING (dataset_version)
 WHERE o.revision_id = %(revision_id)s ORDER BY o.output_index
"""


async def load_revision(conn: Conn, revision_id: UUID) -> Revision:
    """Load a revision with its inputs and outputs. Raises LookupError if it does not exist."""
    key = {"revision_id": revision_id}
    row = await (await conn.execute(_REVISION, key)).fetchone()
    if row is None:
        raise LookupError(f"no revision {revision_id}")
    inputs = await (await conn.execute(_INPUTS, key)).fetchall()
    outputs = await (await conn.execute(_OUTPUTS, key)).fetchall()
    return Revision(
        revision_id,
        *row,
        inputs=tuple(RevisionInput(*i) for i in inputs),
        outputs=tuple(RevisionOutput(*o) for o in outputs),
    )
