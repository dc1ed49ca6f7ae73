"""Which definition a dataset's generation stands for."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from trace_etl.model.dag import Dag, Job


def digest(value: object) -> str:
    """A stable hash of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def definition_hash(job: Job) -> str:
    """Changes with anything in the job's definition."""
    return digest(asdict(job))


def generation_hashes(dag: Dag) -> dict[str, str]:
    """One hash per job: its output-affecting definition and, through its inputs, all upstream."""
    hashes: dict[str, str] = {}

    def of(name: str) -> str:
        if name not in hashes:
            job = dag.job(name)
            hashes[name] = digest(_shape(job, {i.job: of(i.job) for i in job.inputs if i.job}))
        return hashes[name]

    for job in dag.jobs:
        of(job.name)
    return hashes


def _shape(job: Job, upstream: dict[str, str]) -> dict[str, Any]:
    return {
        "runtime": job.runtime,
        "operator": job.operator,
        "config": job.config,
        "inputs": [
            [i.name, i.output, i.dataset, i.where, upstream.get(i.job or "")] for i in job.inputs
        ],
        "execution_strategy": job.execution_strategy,
        "update_strategy": job.update_strategy,
    }
