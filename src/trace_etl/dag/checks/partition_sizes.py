"""Partition sizes of outputs, as far as a DAG file determines them."""

from collections.abc import Iterator, Mapping

from trace_etl.dag.checks.cycles import sort_topologically
from trace_etl.dag.operators import OPERATORS
from trace_etl.model.dag import Dag, Job


def find_size_conflicts(dag: Dag) -> Iterator[tuple[int, str]]:
    """Yield the index of each job whose inputs have different partition sizes, and an error text.

    Each input event creates a task, and the task writes the partition of that event. If two inputs
    have different partition sizes, a partition of one overlaps a part of a partition of the other.
    """
    sizes = _compute_partition_sizes(dag)
    for n, job in enumerate(dag.jobs):
        known = {i.name: size for i in job.inputs if i.starts and (size := sizes.get(i.job or ""))}
        if _copies_partitions(job) and len(set(known.values())) > 1:
            sizes_text = ", ".join(f"{name}: {size} blocks" for name, size in known.items())
            yield (
                n,
                f"have different partition sizes ({sizes_text}), so the partitions of {job.name} would "
                "overlap; use one `size` in the jobs that split them, or `update_strategy: append`",
            )


def _copies_partitions(job: Job) -> bool:
    """Return whether the job's output has the partitions of its inputs."""
    per_partition = job.execution_strategy == "PerPartition" and job.update_strategy == "replace"
    return per_partition and job.partition_by is None and not _changes_partitions(job)


def _changes_partitions(job: Job) -> bool:
    operator = OPERATORS.get(job.operator)
    return operator is not None and operator.repartitions


def _compute_partition_sizes(dag: Dag) -> Mapping[str, int | None]:
    """Return the blocks per partition of each job's outputs; None: unknown."""
    jobs = {job.name: job for job in dag.jobs}
    sizes: dict[str, int | None] = {}
    for name in sort_topologically(
        {job.name: [i.job for i in job.inputs if i.job] for job in dag.jobs}
    ):
        sizes[name] = _compute_output_size(jobs[name], sizes)
    return sizes


def _compute_output_size(job: Job, upstream: Mapping[str, int | None]) -> int | None:
    size = job.config.get("size")
    if _changes_partitions(job):
        return size if isinstance(size, int) else None
    if job.execution_strategy != "PerPartition" or job.partition_by is not None:
        return None
    sizes = {upstream.get(i.job or "") for i in job.inputs}
    return sizes.pop() if len(sizes) == 1 else None
