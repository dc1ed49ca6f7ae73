"""File formats of outputs: only Parquet can be the input of a job."""

from collections.abc import Iterator

from trace_etl.dag.operators import OPERATORS
from trace_etl.model.dag import Dag, Job
from trace_etl.model.storage import PARQUET


def find_unreadable_inputs(dag: Dag) -> Iterator[tuple[int, int, str]]:
    """Yield the index of each job and input that reads text files, and an error text."""
    formats = {job.name: _find_format(job) for job in dag.jobs}
    for n, job in enumerate(dag.jobs):
        operator = OPERATORS.get(job.operator)
        if operator is None or operator.forwards_scopes:
            continue
        for i, item in enumerate(job.inputs):
            if (found := formats.get(item.job or "", PARQUET)) != PARQUET:
                rule = f"{item.job} writes {found} files, which no job can read"
                yield n, i, f"{rule}; remove its `format`, or read the inputs of {item.job}"


def _find_format(job: Job) -> str:
    operator = OPERATORS.get(job.operator)
    return operator.output_format(job.config) if operator else PARQUET
