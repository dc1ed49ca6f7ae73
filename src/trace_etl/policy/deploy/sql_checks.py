"""Select the jobs whose SQL Spark checks before a deploy, and the upstream jobs that the check needs."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from trace_etl.dag.operators import SQL_OPERATORS
from trace_etl.model.dag import Dag

_NEW_GENERATION = ("start", "build")
_CHECKED_FIELDS = ("config", "inputs", "unique_key", "update_strategy", "checks")
"""The fields of a job that the check depends on."""


def find_changed_sql_jobs(dag: Dag, planned: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the jobs with SQL or data checks that a plan adds or changes, directly or through their inputs."""
    changed = {job["name"] for job in planned if _needs_check(job)}
    return [
        job.name
        for job in dag.jobs
        if (job.operator in SQL_OPERATORS or job.checks) and job.name in changed
    ]


def _needs_check(job: Mapping[str, Any]) -> bool:
    if job["change"] == "added" or job["action"] in _NEW_GENERATION:
        return True
    return any(change["field"].startswith(_CHECKED_FIELDS) for change in job["fields"])


def add_upstream_jobs(dag: Dag, names: Collection[str]) -> set[str]:
    """Return the given jobs and all jobs of the DAG upstream of them."""
    reads = {job.name: {item.job for item in job.inputs if item.job} for job in dag.jobs}
    selected, pending = set[str](), set(names)
    while pending:
        selected |= pending
        pending = {upstream for name in pending for upstream in reads[name]} - selected
    return selected
