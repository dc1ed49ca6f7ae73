"""Which jobs of a file Spark has to judge before a deploy, and what it must know for that."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from trace_etl.model.dag import Dag

_SQL = ("sql", "query")
_WHOLE = ("start", "build")
_TOLD = ("config", "inputs", "unique_key", "update_strategy")


def changed_sql(dag: Dag, planned: Iterable[Mapping[str, Any]]) -> list[str]:
    """The SQL jobs that a plan adds or changes, by themselves or by what they read from."""
    new = {job["name"] for job in planned if _is_new(job)}
    return [job.name for job in dag.jobs if job.operator in _SQL and job.name in new]


def _is_new(job: Mapping[str, Any]) -> bool:
    if job["change"] == "added" or job["action"] in _WHOLE:
        return True
    return any(one["field"].startswith(_TOLD) for one in job["fields"])


def with_upstream(dag: Dag, names: Collection[str]) -> set[str]:
    """Jobs, and all those of the DAG that their inputs come from."""
    reads = {job.name: {item.job for item in job.inputs if item.job} for job in dag.jobs}
    found, waiting = set[str](), set(names)
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in reads[one]} - found
    return found
