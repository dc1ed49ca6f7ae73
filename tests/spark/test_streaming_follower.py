"""The streaming follower gives the same guarantees as the loop follower."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.growing_chain import GrowingChain, new_chain
from support.chain.head_faults import boasting_node, lagging_node
from support.services.postgres import Templates, copied, sql
from support.spark.following import KINDS, FollowedChain, catch_up, hot_outputs, new_stream
from support.spark.spark_tasks import task
from support.waiting import eventually
from trace_etl.data.errors import StaleWriter
from trace_etl.devtools.devchain import start_server
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.spark.errors import (
    BadTask,
    DifferentChains,
    FinalityBroken,
    RpcRefused,
    TaskCanceled,
)
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.follow import streaming
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings


@pytest.fixture
def tip() -> Generator[GrowingChain]:
    with start_server(new_chain()) as server:
        yield GrowingChain(server, new_chain())


@pytest.fixture(scope="module")
def data(templates: Templates) -> Generator[str]:
    with copied(templates) as fresh:
        yield fresh.data


@pytest.fixture
def stream(data: str) -> FollowedChain:
    return new_stream(data, batch=30)


def test_growth_and_reorganisations_are_followed_and_announced(
    spark: SparkSession, tip: GrowingChain, stream: FollowedChain, tmp_path: Path
) -> None:
    depths = [1, 2, 17, 64]
    with stream.streaming(1, spark, tmp_path, tip.url, check_interval=3600) as attempt:
        attempt.catch_up(tip)
        assert not stream.invalidations
        for depth in depths:
            tip.reorg(depth)
            attempt.catch_up(tip)
        assert stream.reported_ranges() == [(90 - depth, 89) for depth in depths]
        tip.mine(70)
        attempt.catch_up(tip)
        announced = list(stream.events)
        stream.is_paused = True
        tip.mine(1)
        attempt.catch_up(tip)
        assert stream.events == announced
        stream.is_paused = False
        attempt.follower.check_interval = 0.2
        attempt.catch_up(tip)
    attempt.running.result(timeout=300)
    assert {event.cursor for event in stream.events[len(announced) :]} == {160}
    query = "SELECT reorganisations, deepest FROM followers WHERE stream = %s"
    assert sql(stream.dsn, query, [stream.outputs[0].dataset_version]) == [(4, 64)]
    assert not list(tmp_path.iterdir())


def test_an_attempt_continues_from_the_commit_of_either_engine(
    spark: SparkSession, tip: GrowingChain, stream: FollowedChain, tmp_path: Path
) -> None:
    with stream.attempt(1, tip.url) as follower:
        catch_up(follower)
    tip.reorg(30)
    tip.mine(100)  # the last stored block is now below the finalized block
    with stream.streaming(2, spark, tmp_path, tip.url) as attempt:
        attempt.catch_up(tip)
        with stream.attempt(3, tip.url):
            before = stream.rows()
            tip.reorg(4)
            assert isinstance(attempt.failure(), StaleWriter)
            assert stream.rows() == before
    assert stream.reported_ranges() == [(60, 89)]


def test_an_endpoint_that_lags_lies_or_serves_another_chain_does_not_hold_the_stream(
    spark: SparkSession,
    tip: GrowingChain,
    stream: FollowedChain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SET_ASIDE, "_until", {})  # the port of another test's node may be reused
    with boasting_node(tip.url) as liar, lagging_node(tip.url, lambda: 89) as frozen:
        urls = liar.url, frozen.url, tip.url
        with stream.streaming(1, spark, tmp_path, *urls, compare_seconds=1) as attempt:
            tip.mine(5)
            attempt.catch_up(tip)
            eventually(lambda: len(set(stream.set_aside)) == 2, "both are set aside")
    attempt.running.result(timeout=300)
    assert set(stream.set_aside) == {"unproven_head", "lagging"}
    with (
        start_server(new_chain(seed=8, chain_id=5, initial=200)) as server,
        FaultyNode(server.url) as other,
    ):
        with stream.streaming(2, spark, tmp_path, other.url, tip.url) as attempt:
            tip.mine(1)
            attempt.catch_up(tip)
        attempt.running.result(timeout=300)
        assert set(other.methods()) == {"eth_chainId"}
        with new_stream(stream.dsn).streaming(1, spark, tmp_path, other.url, tip.url) as attempt:
            assert isinstance(attempt.failure(), DifferentChains)
    assert stream.set_aside[-1] == "other_chain"
    assert not stream.invalidations


def test_a_commit_that_fails_while_the_next_blocks_are_read_ends_the_attempt(
    spark: SparkSession, tip: GrowingChain, data: str, tmp_path: Path
) -> None:
    stream = new_stream(data, batch=7)
    with stream.unopened(1, tip.url) as follower:
        follower.open()
    stream_id = stream.outputs[0].dataset_version
    refuse = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'full'; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON followers FOR EACH ROW
      WHEN (NEW.stream = '{}' AND NEW.number >= 40) EXECUTE FUNCTION refuse()
    """
    sql(stream.dsn, refuse.format(stream_id))
    with stream.streaming(2, spark, tmp_path, tip.url) as attempt:
        assert "full" in str(attempt.failure())
    # Spark reads 14 blocks at once; they are committed 7 at a time.
    assert stream.rows() == {
        kind: [row for row in rows if row["block_number"] < 35] for kind, rows in tip.rows().items()
    }
    sql(stream.dsn, "DROP TRIGGER refuse ON followers")
    with stream.streaming(3, spark, tmp_path, tip.url) as attempt:
        attempt.catch_up(tip)


@pytest.mark.parametrize(
    ("below", "rewritten"), [(3, []), (0, [(90, 94)])], ids=["does_not_fit", "fits"]
)
def test_a_chain_that_changes_between_plan_and_read_is_followed_correctly(
    spark: SparkSession,
    tip: GrowingChain,
    stream: FollowedChain,
    tmp_path: Path,
    below: int,
    rewritten: list[tuple[int, int]],
) -> None:
    with start_server(new_chain()) as server, FaultyNode(tip.url) as node:
        other = GrowingChain(server, new_chain())
        other.mine(5)
        other.reorg(
            5 + below
        )  # its new blocks extend the stored ones only if none below has changed
        steps: list[str] = []

        def before(calls: Calls) -> Reply | None:
            if calls[0]["params"][1:] == [True] and tip.copy.head == 94 and not steps:
                node.upstream = other.url  # planned on one chain, read from another
                steps.append("read")
            elif calls[0]["params"][:1] == ["latest"] and steps[-1:] == ["read whole"]:
                node.upstream = tip.url  # the first chain is back before the next request
                steps.append("back")
            return None

        def after(calls: Calls, items: Calls) -> Calls:
            if calls[0]["method"] == "eth_getBlockReceipts" and steps[-1:] == ["read"]:
                steps.append("read whole")
            return items

        node.after = after
        node.before = before
        with stream.streaming(1, spark, tmp_path, node.url) as attempt:
            attempt.catch_up(tip)
            tip.mine(5)
            attempt.catch_up(tip)
            assert steps == ["read", "read whole", "back"]
            tip.mine(1)
            attempt.catch_up(tip)
        attempt.running.result(timeout=300)
    assert stream.reported_ranges() == rewritten


def test_a_reorganisation_deeper_than_an_offset_is_found_in_the_recent_blocks(
    spark: SparkSession,
    tip: GrowingChain,
    stream: FollowedChain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "_REORG_DEPTH", 4)
    with stream.streaming(1, spark, tmp_path, tip.url, check_interval=3600) as attempt:
        attempt.catch_up(tip)
        tip.mine(1)
        attempt.catch_up(tip)
        tip.reorg(17)
        attempt.catch_up(tip)
        tip.mine(1)
        attempt.catch_up(tip)
    attempt.running.result(timeout=300)
    assert stream.reported_ranges() == [(74, 90)]


def test_an_unavailable_node_is_waited_for_and_broken_finality_is_reported(
    spark: SparkSession, tip: GrowingChain, stream: FollowedChain, tmp_path: Path
) -> None:
    with FaultyNode(tip.url) as node:
        with stream.streaming(1, spark, tmp_path, node.url, tries=1) as attempt:
            attempt.catch_up(tip)
            refused: list[int] = []

            def refuse(calls: Calls) -> Reply | None:
                refused.append(1)
                return Reply(503)

            node.before = refuse
            tip.mine(3)
            eventually(lambda: len(refused) > 2, "the node refused several requests")
            node.before = lambda calls: None
            attempt.catch_up(tip)
        attempt.running.result(timeout=300)
        rows = stream.rows()
        with start_server(new_chain(seed=8, initial=200)) as another:
            node.upstream = another.url
            with stream.streaming(2, spark, tmp_path, node.url) as attempt:
                failure = attempt.failure()
        assert isinstance(failure, FinalityBroken)
        assert "was final" in failure.detail
    assert stream.rows() == rows


def test_the_attempt_fails_with_the_cause_after_the_node_timeout(
    spark: SparkSession, tip: GrowingChain, data: str, tmp_path: Path
) -> None:
    stream = new_stream(data, timeout=0.5)
    with (
        FaultyNode(tip.url) as node,
        stream.streaming(1, spark, tmp_path, node.url, tries=1) as attempt,
    ):
        attempt.catch_up(tip)
        node.before = lambda calls: Reply(503) if calls[0]["params"][:1] == ["latest"] else None
        failure = attempt.failure()
    assert isinstance(failure, RpcRefused), failure
    assert "HTTP 503" in failure.detail and node.label in failure.detail


def test_the_streaming_operator_can_be_canceled_during_a_read(
    runner: SparkRunner, tip: GrowingChain, data: str
) -> None:
    with FaultyNode(tip.url) as node, ThreadPoolExecutor(1) as pool:
        settings = replace(runner.settings, rpc_pools={"tip": (node.url,)}, data_dsn=data)
        made = SparkRunner(settings)
        made.session = runner.session  # the shared warm session
        config = {"engine": "streaming", "start_block": 80, "poll_seconds": 0.05, "rpc": "tip"}
        payload = task("block_follower", config, [f"hot_{kind}" for kind in KINDS])
        stream, announced = FollowedChain(data, hot_outputs(payload)), Queue[int | None]()

        def report(events: Any, invalidations: Any = ()) -> None:
            stream.report(events, invalidations)
            announced.put(events[0].cursor)

        running = pool.submit(made.run, payload, DispatcherLink(report))
        assert announced.get(timeout=300) == 89
        tip.mine(2)
        assert announced.get(timeout=300) == 91
        rows, reading, go_on = tip.rows(start=80), Event(), Event()

        def hang(calls: Calls) -> None:
            if calls[0]["params"][1:] == [True]:
                reading.set()
                go_on.wait(300)

        node.change = hang
        tip.mine(1)
        assert reading.wait(120)
        assert _pools_and_tags(runner.session.get(), str(payload.task_id)) == ({"slot-0"}, True)
        made.cancel(payload.task_id)
        try:
            with pytest.raises(TaskCanceled):
                running.result(timeout=120)
        finally:
            go_on.set()
    assert stream.rows() == rows


def _pools_and_tags(spark: SparkSession, task_id: str) -> tuple[set[str], bool]:
    """Return the pools of all active stages, and whether a job has the tag of the task."""
    store = cast("Any", spark)._jsc.sc().statusStore()
    stages, jobs = store.activeStages(), store.jobsList(None)
    tags = [str(jobs.apply(at).jobTags()) for at in range(jobs.size())]
    pools = {stages.apply(at).schedulingPool() for at in range(stages.size())}
    return pools, any(task_id in tag for tag in tags)


def test_the_streaming_engine_refuses_spark_connect(data: str, tmp_path: Path) -> None:
    made = SparkRunner(
        SparkSettings(
            FileStore(tmp_path),
            tmp_path,
            master="sc://127.0.0.1:9",
            rpc_pools={"default": ("http://127.0.0.1:9",)},
            data_dsn=data,
        )
    )
    payload = task("block_follower", {"engine": "streaming"}, ["hot_logs"])
    with pytest.raises(BadTask, match="does not work with Spark Connect"):
        made.run(payload, DispatcherLink(lambda events, invalidations=(): None))
