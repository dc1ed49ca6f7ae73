"""Runs every job of a DAG on a runner, without a Dispatcher."""

from pathlib import Path

from support.spark.spark_tasks import as_input, range_scope, task
from trace_etl.api.task.payload import TaskPayload
from trace_etl.dag.operators import FORWARDERS
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.dag import Job
from trace_etl.policy.ranges import split_range
from trace_etl.spark.runner import SparkRunner

DAG = Path(__file__).parents[3] / "examples" / "quickstart" / "dag.yaml"


def run_dag(
    runner: SparkRunner, dag: Path, start: int, end: int, size: int
) -> dict[tuple[str, int], TaskPayload]:
    """Run every job that derives rows from a range, for every partition.

    Returns the payloads by job and first block.
    """
    jobs = parse_dag(dag.read_text()).jobs
    forwarders = {job.name for job in jobs if job.operator in FORWARDERS}
    payloads: dict[tuple[str, int], TaskPayload] = {}
    for cut in split_range(start, end, size):
        finished: dict[str, TaskPayload] = {}
        for job in jobs:
            fed = [item.job in finished or item.job in forwarders for item in job.inputs]
            if job.name in forwarders or not fed or not all(fed):
                continue
            payloads[job.name, cut[0]] = finished[job.name] = payload = _payload(
                job, finished, *cut
            )
            runner.run(payload)
    return payloads


def _payload(job: Job, finished: dict[str, TaskPayload], start: int, end: int) -> TaskPayload:
    inputs = [
        {**as_input(finished[item.job], name=item.output or ""), "name": item.name}
        for item in job.inputs
        if item.job in finished
    ]
    return task(job.operator, job.config, job.outputs, scope=range_scope(start, end), inputs=inputs)
