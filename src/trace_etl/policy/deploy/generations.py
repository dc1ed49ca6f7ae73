"""Compute the hash that identifies the generation of a job's outputs."""

import json
from dataclasses import asdict
from typing import Any

from trace_etl.dag.buffered_datasets import find_buffered_outputs
from trace_etl.dag.checks.cycles import sort_topologically
from trace_etl.dag.operators import OPERATORS
from trace_etl.model.dag import Dag, Job
from trace_etl.model.digests import digest

GENERATION_FIELDS = (
    "runtime",
    "operator",
    "config",
    "inputs",
    "outputs",
    "execution_strategy",
    "update_strategy",
    "unique_key",
    "udf",
)
"""The fields of a job that determine its rows. The other fields only affect how the tasks run."""
_OPTIONAL = ("trigger", "time", "partition_by", "retry", "checks")
"""Fields that the hash covers only if they have a value, so that other jobs keep their earlier hash."""
_DERIVED = ("reads", "starts")


def job_definition(job: Job) -> dict[str, Any]:
    """Return a job's complete definition as JSON data."""
    definition: dict[str, Any] = json.loads(json.dumps(asdict(job)))
    inputs = [
        {k: v for k, v in item.items() if k not in _DERIVED and not (k in _OPTIONAL and v is None)}
        for item in definition["inputs"]
    ]
    kept = {k: v for k, v in definition.items() if not (k in _OPTIONAL and v in (None, []))}
    return {**kept, "inputs": inputs}


def definition_hash(job: Job) -> str:
    """Return a hash that changes with every change of the job's definition."""
    return digest(job_definition(job))


def generation_hashes(dag: Dag) -> dict[str, str]:
    """Return a hash per job over the fields, of the job and of all jobs upstream, that determine its rows.

    The hash also covers the declarations of the buffered datasets that the job writes to.
    """
    jobs = {job.name: job for job in dag.jobs}
    shared: dict[str, list[list[str]]] = {}
    for (job, output), buffer in sorted(find_buffered_outputs(dag).items()):
        shared.setdefault(job, []).append([output, buffer.name, buffer.generation])
    hashes: dict[str, str] = {}
    for name in sort_topologically(
        {job.name: [i.job for i in job.inputs if i.job] for job in dag.jobs}
    ):
        upstream = [hashes.get(i.job or "") for i in jobs[name].inputs]
        targets = [shared[name]] if name in shared else []
        hashes[name] = digest(
            [_select_generation_fields(job_definition(jobs[name])), upstream, *targets]
        )
    return hashes


def _select_generation_fields(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a definition that determines the job's rows."""
    tuning = tuning_fields(definition["operator"])
    config = {key: value for key, value in definition["config"].items() if key not in tuning}
    fields = {field: definition.get(field) for field in GENERATION_FIELDS}
    if "partition_by" in definition:
        fields["partition_by"] = definition["partition_by"]
    return {**fields, "config": config}


def tuning_fields(operator: str) -> frozenset[str]:
    """Return the fields of an operator's config that do not change its rows."""
    return OPERATORS[operator].config.tuning() if operator in OPERATORS else frozenset()
