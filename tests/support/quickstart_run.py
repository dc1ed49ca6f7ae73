"""The quickstart DAG, job by job, on any Spark: `python -m support.quickstart_run MASTER …`."""

import json
import sys
from pathlib import Path

from support.spark_tasks import as_input, range_scope, task
from trace_etl.model.dag import Job
from trace_etl.pipeline.runner import SparkRunner
from trace_etl.pipeline.settings import PipelineSettings
from trace_etl.plan.dagfile import parse_dag
from trace_etl.plan.ranges import split
from trace_etl.wire.task import TaskPayload

DAG = Path(__file__).parents[2] / "examples" / "quickstart" / "dag.yaml"


def run_dag(runner: SparkRunner, start: int, end: int, size: int) -> dict[str, str]:
    """Run every job that has rows for every partition; where each output of each lies."""
    jobs = {job.name: job for job in parse_dag(DAG.read_text()).jobs}
    places: dict[str, str] = {}
    for cut in split(start, end, size):
        done: dict[str, TaskPayload] = {}
        for job in jobs.values():
            if job.operator in ("source", "range_splitter"):
                continue
            done[job.name] = payload = _payload(job, done, *cut)
            runner.run(payload)
            for output in payload.outputs:
                places[f"{job.name}.{output.name}.{cut[0]}"] = output.storage_ref.prefix
    return places


def _payload(job: Job, done: dict[str, TaskPayload], start: int, end: int) -> TaskPayload:
    given = [
        {**as_input(done[item.job], name=item.output or ""), "name": item.name}
        for item in job.inputs
        if item.job in done
    ]
    return task(job.operator, job.config, job.outputs, scope=range_scope(start, end), inputs=given)


def main() -> None:
    master, objects, scratch, rpc_url, conf = sys.argv[1:]
    settings = PipelineSettings(
        Path(objects),
        Path(scratch),
        master=master,
        rpc_pools={"default": (rpc_url,)},
        spark_conf=json.loads(conf),
    )
    runner = SparkRunner(settings)
    try:
        runner.warm()
        places = run_dag(runner, 0, 59, 20)
    finally:
        runner.close()
    print(json.dumps(places))


if __name__ == "__main__":
    main()
