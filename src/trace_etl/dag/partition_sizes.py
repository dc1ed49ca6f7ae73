"""How wide the partitions of outputs are, as far as a DAG file says."""

from collections.abc import Iterator, Mapping

from trace_etl.dag.cycles import in_order
from trace_etl.model.dag import Dag, Job

# They know what to make of inputs that are cut differently.
_AT_EASE = ("range_splitter", "range_aggregator", "parquet_compact", "hot_trim")


def clashes(dag: Dag) -> Iterator[tuple[int, str]]:
    """The jobs whose partitions would cut through each other, and why.

    A job is woken by each of its inputs, and makes a partition of what woke it. If two inputs are
    cut into different sizes, one of their partitions sooner or later begins inside another.
    """
    sizes = _sizes(dag)
    for n, job in enumerate(dag.jobs):
        known = {i.name: size for i in job.inputs if (size := sizes.get(i.job or ""))}
        if _keeps(job) and len(set(known.values())) > 1:
            told = ", ".join(f"{name} into {size} blocks" for name, size in known.items())
            yield (
                n,
                f"are cut differently ({told}): the partitions of {job.name} would cut through "
                "each other; give what splits them one size, or use `update_strategy: append`",
            )


def _keeps(job: Job) -> bool:
    per_partition = job.execution_strategy == "PerPartition" and job.update_strategy == "replace"
    return per_partition and job.operator not in _AT_EASE


def _sizes(dag: Dag) -> Mapping[str, int | None]:
    """By job, how many blocks each partition of its outputs has; None: nobody can tell."""
    jobs = {job.name: job for job in dag.jobs}
    sizes: dict[str, int | None] = {}
    for name in in_order({job.name: [i.job for i in job.inputs if i.job] for job in dag.jobs}):
        sizes[name] = _size(jobs[name], sizes)
    return sizes


def _size(job: Job, above: Mapping[str, int | None]) -> int | None:
    size = job.config.get("size")
    if job.operator in _AT_EASE:
        return size if isinstance(size, int) else None
    if job.execution_strategy != "PerPartition":
        return None
    found = {above.get(i.job or "") for i in job.inputs}
    return found.pop() if len(found) == 1 else None
