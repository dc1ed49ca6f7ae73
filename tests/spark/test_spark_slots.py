"""Slots of one worker on one Spark: each with a pool of its own, each stopped by its own tag."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from support.faulty_node import Calls, FaultyNode, Reply
from support.spark_tasks import directory, ingest, marker, rows, select
from support.waiting import eventually
from trace_etl.spark.errors import TaskCanceled
from trace_etl.spark.runner import SparkRunner

DEADLINE = 60.0
_PARTS = 5000
# Tasks enough to keep every core busy for minutes, each of them over in a moment.
_LONG = f"SELECT sum(id % 7) AS n FROM range(0, {_PARTS} * 20000000L, 1, {_PARTS})"


def _tags(runner: SparkRunner) -> dict[Any, str]:
    return {run.task_id: run.jobs.tag for run in runner._runs}


def _active(runner: SparkRunner, tag: str) -> list[int]:
    """Spark's own list of running jobs, those with the tag."""
    context = runner.session.get().sparkContext
    active = context.statusTracker().getActiveJobsIds()
    return [job for job in _tagged(context, tag) if job in active]


def _tagged(context: Any, tag: str) -> list[int]:
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def test_a_canceled_task_s_job_is_stopped_by_its_tag_and_the_other_slot_s_goes_on(
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
            eventually(lambda: len(node.requests) >= 2, "both tasks asking the node")
            tags = _tags(runner)
            assert all(len(_active(runner, tag)) == 1 for tag in tags.values())
            runner.cancel(doomed.task_id)
            with pytest.raises(TaskCanceled):
                runs[0].result(DEADLINE)
            eventually(lambda: not _active(runner, tags[doomed.task_id]), "the end of its job")
            assert _active(runner, tags[other.task_id]) and not runs[1].done()
        finally:
            gate.set()
        runs[1].result(DEADLINE)
    assert marker(objects, other, "blocks")["rows"] == 10
    assert not (directory(objects, doomed, "blocks") / "_SUCCESS").exists()


def test_a_task_canceled_before_its_first_job_never_runs_one(runner: SparkRunner) -> None:
    leased, told = threading.Event(), threading.Event()
    original = runner.session.engine.use_session

    def use_session(*args: Any) -> Any:
        leased.set()
        assert told.wait(DEADLINE)
        return original(*args)

    payload = select("SELECT sum(a.id % 7) AS n FROM range(0, 100000000000, 1, 1) a")
    with ThreadPoolExecutor(1) as pool:
        cast("Any", runner.session.engine).use_session = use_session
        try:
            run = pool.submit(runner.run, payload)
            assert leased.wait(DEADLINE)
            runner.cancel(payload.task_id)  # nothing carries the tag yet
        finally:
            del cast("Any", runner.session.engine).use_session
            told.set()
        with pytest.raises(TaskCanceled):
            run.result(DEADLINE)


def test_a_short_task_in_one_slot_ends_while_a_long_one_holds_every_core(
    runner: SparkRunner, objects: Path
) -> None:
    context = cast("Any", runner.session.get().sparkContext)
    long, short = select(_LONG), select("SELECT count(*) AS n FROM range(1000)")

    def pool_of(name: str) -> Any:
        return context._jsc.sc().getPoolForName(name)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(runner.run, long)
        try:
            eventually(lambda: long.task_id in _tags(runner), "its start")
            tag = _tags(runner)[long.task_id]
            eventually(lambda: _stage(context, tag).numActiveTasks >= 2, "both cores at work")
            assert pool_of("slot-0").get().runningTasks() >= 2
            pool.submit(runner.run, short).result(DEADLINE)
            stage = _stage(context, tag)
            # First in, first out would have started all of these before.
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


def _stage(context: Any, tag: str) -> Any:
    """The stage with the most tasks of the jobs with the tag."""
    tracker = context.statusTracker()
    jobs = filter(None, map(tracker.getJobInfo, _tagged(context, tag)))
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return max(filter(None, stages), key=lambda one: one.numTasks, default=_NoStage)
