"""Slots of one worker share a Spark: each has its own pool, and its jobs are canceled by its tag."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.spark.spark_tasks import directory, ingest, marker, rows, select
from support.waiting import eventually
from trace_etl.spark.errors import TaskCanceled
from trace_etl.spark.runner import SparkRunner

DEADLINE = 60.0
_PARTS = 5000
# Enough short Spark tasks to keep every core busy for minutes.
_LONG = f"SELECT sum(id % 7) AS n FROM range(0, {_PARTS} * 20000000L, 1, {_PARTS})"


def _tags(runner: SparkRunner) -> dict[Any, str]:
    return {run.task_id: run.jobs.tag for run in runner._runs}


def active_jobs(runner: SparkRunner, tag: str) -> list[int]:
    """Return the running Spark jobs with the tag."""
    context = runner.session.get().sparkContext
    active = context.statusTracker().getActiveJobsIds()
    return [job for job in jobs_with_tag(context, tag) if job in active]


def jobs_with_tag(context: Any, tag: str) -> list[int]:
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def test_canceling_a_task_stops_only_the_jobs_with_its_tag(
    runner: SparkRunner, objects: Path, rpc_url: str, pools: dict[str, tuple[str, ...]]
) -> None:
    gate = threading.Event()

    def before(calls: Calls) -> Reply | None:
        gate.wait(DEADLINE)
        return None

    with FaultyNode(rpc_url, before) as node, ThreadPoolExecutor(2) as pool:
        pools["held"] = (node.url,)
        doomed, other = ingest(0, 9, pool="held"), ingest(10, 19, pool="held")
        try:
            runs = [pool.submit(runner.run, payload) for payload in (doomed, other)]
            eventually(lambda: len(node.requests) >= 2, "both tasks call the node")
            tags = _tags(runner)
            assert all(len(active_jobs(runner, tag)) == 1 for tag in tags.values())
            runner.cancel(doomed.task_id)
            with pytest.raises(TaskCanceled):
                runs[0].result(DEADLINE)
            eventually(
                lambda: not active_jobs(runner, tags[doomed.task_id]), "the canceled job ended"
            )
            assert active_jobs(runner, tags[other.task_id]) and not runs[1].done()
        finally:
            gate.set()
        runs[1].result(DEADLINE)
    assert marker(objects, other, "blocks")["rows"] == 10
    assert not (directory(objects, doomed, "blocks") / "_SUCCESS").exists()


def test_a_task_canceled_before_its_first_job_starts_no_job(runner: SparkRunner) -> None:
    leased, is_canceled = threading.Event(), threading.Event()
    original = runner.session.engine.use_session

    def use_session(*args: Any) -> Any:
        leased.set()
        assert is_canceled.wait(DEADLINE)
        return original(*args)

    payload = select("SELECT sum(a.id % 7) AS n FROM range(0, 100000000000, 1, 1) a")
    with ThreadPoolExecutor(1) as pool:
        cast("Any", runner.session.engine).use_session = use_session
        try:
            run = pool.submit(runner.run, payload)
            assert leased.wait(DEADLINE)
            runner.cancel(payload.task_id)  # no job has the tag yet
        finally:
            del cast("Any", runner.session.engine).use_session
            is_canceled.set()
        with pytest.raises(TaskCanceled):
            run.result(DEADLINE)


def test_a_short_task_finishes_while_a_long_one_uses_every_core(
    runner: SparkRunner, objects: Path
) -> None:
    context = cast("Any", runner.session.get().sparkContext)
    long, short = select(_LONG), select("SELECT count(*) AS n FROM range(1000)")

    def pool_of(name: str) -> Any:
        return context._jsc.sc().getPoolForName(name)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(runner.run, long)
        try:
            eventually(lambda: long.task_id in _tags(runner), "the long task started")
            tag = _tags(runner)[long.task_id]
            eventually(
                lambda: largest_stage(context, tag).numActiveTasks >= 2, "both cores are busy"
            )
            assert pool_of("slot-0").get().runningTasks() >= 2
            pool.submit(runner.run, short).result(DEADLINE)
            stage = largest_stage(context, tag)
            # With FIFO scheduling, all tasks of the long job would have started first.
            assert stage.numCompletedTasks + stage.numActiveTasks < stage.numTasks == _PARTS
            assert not running.done()
        finally:
            runner.cancel(long.task_id)
        with pytest.raises(TaskCanceled):
            running.result(DEADLINE)
    assert rows(objects, short, "answer") == [{"n": 1000}]
    assert pool_of("slot-1").isDefined() and pool_of("slot-1").get().name() == "slot-1"


class _NoStage:
    numActiveTasks = numCompletedTasks = numTasks = 0


def largest_stage(context: Any, tag: str) -> Any:
    """Return the stage with the most tasks among the jobs with the tag."""
    tracker = context.statusTracker()
    jobs = filter(None, map(tracker.getJobInfo, jobs_with_tag(context, tag)))
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return max(filter(None, stages), key=lambda one: one.numTasks, default=_NoStage)
