"""Results of data checks: record them with the commit, hold consumers, accept results."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trace_etl.api.task.checks import CheckResult
from trace_etl.api.user.data.checks import CheckResultItem
from trace_etl.model.errors import Invalid, NotFound
from trace_etl.model.task import Fence
from trace_etl.policy.commit.check_results import DefinedCheck, ReportedCheck, find_result_faults
from trace_etl.state.db.pool import Conn
from trace_etl.state.db.rows import NewestFirstKey, fetch_all, page_start_values

PartitionName = tuple[UUID, str]
"""The dataset version and the key of a partition."""

_DEFINED = """
SELECT dataset_version, name, on_failure FROM checks_of_task(%(task_id)s)
"""


async def require_results(
    conn: Conn,
    fence: Fence,
    results: Sequence[CheckResult],
    published: Collection[PartitionName],
) -> None:
    """Check the reported results against the definition of the task's job. Raises Invalid."""
    rows = await (await conn.execute(_DEFINED, {"task_id": fence.task_id})).fetchall()
    reported = [
        ReportedCheck(r.dataset_version, r.partition_key, r.name, r.passed) for r in results
    ]
    faults = list(find_result_faults([DefinedCheck(*row) for row in rows], reported, published))
    if faults:
        raise Invalid(faults)


# The results of the replaced partitions, and what they held. Held tasks may start now.
_FORGET = """
WITH forgotten AS (
    DELETE FROM check_results c USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
     WHERE c.dataset_version = g.v AND c.partition_key = g.k
), freed AS (
    DELETE FROM held_partitions h USING unnest(%(versions)s::uuid[], %(keys)s::text[]) AS g (v, k)
     WHERE h.dataset_version = g.v AND h.partition_key = g.k
    RETURNING h.job_id
)
SELECT count(*) FROM enqueue(ARRAY(
    SELECT outbox_entry('release', f.job_id) FROM (SELECT DISTINCT job_id FROM freed) f))
"""


async def forget(conn: Conn, partitions: Collection[PartitionName]) -> None:
    """Delete the results of partitions that are replaced, and wake the tasks that they held."""
    values = {"versions": [v for v, _ in partitions], "keys": [key for _, key in partitions]}
    await conn.execute(_FORGET, values)


_RECORD = """
WITH reported AS (
    SELECT d.*, r.partition_key, r.passed, r.checked_rows, r.failing_rows, r.samples, r.message
      FROM jsonb_to_recordset(%(results)s) AS r (
           dataset_version uuid, partition_key text, name text, passed boolean, checked_rows bigint,
           failing_rows bigint, samples jsonb, message text)
      JOIN checks_of_task(%(task_id)s) d USING (dataset_version, name)
), recorded AS (
    INSERT INTO check_results AS c (
           org_id, job_id, dataset_uuid, dataset_version, partition_key, name, kind, on_failure,
           consumers, is_committed, passed, checked_rows, failing_rows, samples, message, task_id,
           attempt)
    SELECT org_id, job_id, dataset_uuid, dataset_version, partition_key, name, kind, on_failure,
           consumers, %(is_committed)s, passed, checked_rows, failing_rows, samples, message,
           %(task_id)s, %(attempt)s
      FROM reported
    ON CONFLICT (dataset_version, partition_key, job_id, name, is_committed) DO UPDATE
       SET result_id = EXCLUDED.result_id, kind = EXCLUDED.kind, on_failure = EXCLUDED.on_failure,
           consumers = EXCLUDED.consumers, passed = EXCLUDED.passed,
           checked_rows = EXCLUDED.checked_rows, failing_rows = EXCLUDED.failing_rows,
           samples = EXCLUDED.samples, message = EXCLUDED.message, task_id = EXCLUDED.task_id,
           attempt = EXCLUDED.attempt, checked_at = now(), accepted_at = NULL, accepted_by = NULL,
           accept_reason = NULL
)
INSERT INTO held_partitions (job_id, dataset_version, partition_key, producer_id, check_name)
SELECT j.job_id, r.dataset_version, r.partition_key, r.job_id, r.name
  FROM reported r JOIN jobs j ON j.dag_id = r.dag_id AND j.name = ANY (r.consumers)
 WHERE %(is_committed)s AND NOT r.passed AND r.on_failure = 'block_consumers'
ON CONFLICT DO NOTHING
"""


async def record(
    conn: Conn, fence: Fence, results: Sequence[CheckResult], *, is_committed: bool
) -> None:
    """Record the results of an attempt. A failed check with `block_consumers` holds its consumers."""
    values: dict[str, Any] = {
        "task_id": fence.task_id,
        "attempt": fence.attempt,
        "results": Jsonb([result.model_dump(mode="json") for result in results]),
        "is_committed": is_committed,
    }
    await conn.execute(_RECORD, values)


_FIND_DATASET = """
SELECT d.dataset_uuid
  FROM datasets d JOIN dataset_producers w USING (dataset_uuid)
  JOIN jobs j ON j.job_id = w.job_id JOIN dags g USING (dag_id)
  LEFT JOIN publications p USING (dataset_uuid)
 WHERE d.org_id = %(org_id)s
   AND (p.name = %(name)s OR concat_ws('.', g.name, j.name, w.output_name) = %(name)s)
 LIMIT 1
"""


async def find_dataset(conn: Conn, org_id: UUID, name: str) -> UUID:
    """Find a dataset by its published name, or by its output as `dag.job.output`. Raises NotFound."""
    row = await (await conn.execute(_FIND_DATASET, {"org_id": org_id, "name": name})).fetchone()
    if row is None:
        raise NotFound(
            f"no dataset {name!r}; name a published dataset or an output as dag.job.output"
        )
    return row[0]


_LIST = """
SELECT * FROM check_details
 WHERE org_id = %(org_id)s
   AND (%(dataset_uuid)s::uuid IS NULL OR dataset_uuid = %(dataset_uuid)s)
   AND (%(partition_key)s::text IS NULL OR partition_key = %(partition_key)s)
   AND (NOT %(failed)s OR NOT passed)
   AND (%(before)s::timestamptz IS NULL OR (checked_at, result_id) < (%(before)s, %(before_id)s))
 ORDER BY checked_at DESC, result_id DESC LIMIT %(limit)s
"""


async def list_results(
    conn: Conn,
    org_id: UUID,
    *,
    dataset_uuid: UUID | None,
    partition_key: str | None,
    failed: bool,
    after: NewestFirstKey | None,
    limit: int,
) -> list[CheckResultItem]:
    """List one page of results, newest first."""
    values = {
        "org_id": org_id,
        "dataset_uuid": dataset_uuid,
        "partition_key": partition_key,
        "failed": failed,
        **page_start_values(after),
        "limit": limit,
    }
    return await fetch_all(conn, CheckResultItem, _LIST, values)


_ACCEPT = """
WITH accepted AS (
    UPDATE check_results c
       SET accepted_at = now(), accepted_by = %(by)s, accept_reason = %(reason)s
     WHERE c.org_id = %(org_id)s AND c.dataset_uuid = %(dataset_uuid)s
       AND c.partition_key = %(partition_key)s AND c.is_committed AND NOT c.passed
       AND c.accepted_at IS NULL AND (%(check)s::text IS NULL OR c.name = %(check)s)
    RETURNING c.dataset_version, c.partition_key, c.job_id, c.name
), freed AS (
    DELETE FROM held_partitions h USING accepted a
     WHERE h.dataset_version = a.dataset_version AND h.partition_key = a.partition_key
       AND h.producer_id = a.job_id AND h.check_name = a.name
    RETURNING h.job_id
), woken AS (
    SELECT count(*) AS jobs FROM enqueue(ARRAY(
           SELECT outbox_entry('release', f.job_id) FROM (SELECT DISTINCT job_id FROM freed) f))
)
SELECT (SELECT array_agg(name ORDER BY name) FROM accepted), (SELECT jobs FROM woken)
"""


async def accept(
    conn: Conn,
    org_id: UUID,
    dataset_uuid: UUID,
    *,
    partition_key: str,
    check: str | None,
    by: str,
    reason: str,
) -> tuple[list[str], int]:
    """Accept failed results of a committed partition, and wake the tasks that they held.

    Returns the names of the checks and the number of jobs that were held. Raises NotFound.
    """
    values = {
        "org_id": org_id,
        "dataset_uuid": dataset_uuid,
        "partition_key": partition_key,
        "check": check,
        "by": by,
        "reason": reason,
    }
    row = await (await conn.execute(_ACCEPT, values)).fetchone()
    if row is None or row[0] is None:
        raise NotFound(
            f"partition {partition_key} has no failed result to accept; `trace checks --failed` lists "
            "them. A partition that a check blocked is not committed: fix the job and retry its task"
        )
    return row[0], row[1]


_DELETE_REMOVED = """
DELETE FROM check_results WHERE ctid IN (
    SELECT c.ctid FROM check_results c JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
     WHERE g.removed_at IS NOT NULL AND NOT g.keeps_data LIMIT %(limit)s)
"""


async def delete_removed(conn: Conn, *, limit: int) -> None:
    """Delete one batch of results of removed DAGs, whose data is deleted too."""
    await conn.execute(_DELETE_REMOVED, {"limit": limit})
