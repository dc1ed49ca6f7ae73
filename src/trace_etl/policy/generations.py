"""Which definition a dataset's generation stands for."""

import json
from dataclasses import asdict
from typing import Any

from trace_etl.dag.buffered_datasets import buffers
from trace_etl.dag.cycles import in_order
from trace_etl.dag.operators import OPERATORS
from trace_etl.model.dag import Dag, Job
from trace_etl.model.digests import digest

# What shapes a job's rows, in the job's own words. The rest says how the work is done.
SHAPING = (
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


def definition(job: Job) -> dict[str, Any]:
    """Everything the file says of a job, as plain data."""
    return json.loads(json.dumps(asdict(job)))


def definition_hash(job: Job) -> str:
    """Changes with anything in the job's definition."""
    return digest(asdict(job))


def generation_hashes(dag: Dag) -> dict[str, str]:
    """One hash per job: its output-affecting definition and, through its inputs, all upstream.

    Where its rows go counts as well: an output that is published as buffered goes elsewhere.
    """
    jobs = {job.name: job for job in dag.jobs}
    shared: dict[str, list[list[str]]] = {}
    for (job, output), buffer in sorted(buffers(dag).items()):
        shared.setdefault(job, []).append([output, buffer.name, buffer.generation])
    hashes: dict[str, str] = {}
    for name in in_order({job.name: [i.job for i in job.inputs if i.job] for job in dag.jobs}):
        upstream = [hashes.get(i.job or "") for i in jobs[name].inputs]
        goes = [shared[name]] if name in shared else []
        hashes[name] = digest([shape(definition(jobs[name])), upstream, *goes])
    return hashes


def shape(whole: dict[str, Any]) -> dict[str, Any]:
    """The part of a definition that shapes the job's rows."""
    tuning = tuning_of(whole["operator"])
    config = {key: value for key, value in whole["config"].items() if key not in tuning}
    return {**{field: whole.get(field) for field in SHAPING}, "config": config}


def tuning_of(operator: str) -> frozenset[str]:
    """The fields of an operator's config that shape no rows."""
    return OPERATORS[operator].config.tuning() if operator in OPERATORS else frozenset()
