"""Follow a chain into hot tables through reorganisations, process failures and faulty nodes."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from prometheus_client import REGISTRY

from support.chain.chain_rows import expected
from support.chain.faulty_node import Calls, FaultyNode, Reply
from support.chain.growing_chain import GrowingChain, new_chain
from support.services.postgres import Templates, copied, sql
from support.spark.following import FollowedChain, catch_up, hot_outputs, new_stream
from support.spark.spark_tasks import task
from trace_etl.data.errors import DataUnavailable, OtherChain, StaleWriter
from trace_etl.devtools.devchain import DevChain, start_server
from trace_etl.devtools.devchain.chain.devchain import ReorgAt
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.dispatcher_link import DispatcherLink
from trace_etl.spark.errors import ChainMismatch, FinalityBroken, TaskCanceled
from trace_etl.spark.runner import SparkRunner
from trace_etl.spark.settings import SparkSettings


@pytest.fixture
def chain() -> Generator[GrowingChain]:
    with start_server(new_chain()) as server:
        yield GrowingChain(server, new_chain())


@pytest.fixture(scope="module")
def data(templates: Templates) -> Generator[str]:
    """One database for all tests: every stream has its own tables."""
    with copied(templates) as fresh:
        yield fresh.data


@pytest.fixture
def stream(data: str) -> FollowedChain:
    return new_stream(data)


def test_a_paused_follower_writes_blocks_and_announces_them_after_the_pause(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
        announced = list(stream.events)
        stream.is_paused = True
        chain.mine(3)
        catch_up(follower)
        chain.reorg(1)
        catch_up(follower)
        assert stream.rows() == chain.rows()
        assert (stream.events, stream.invalidations) == (announced, [])
        stream.is_paused = False
        catch_up(follower)
        assert {event.cursor for event in stream.events[len(announced) :]} == {chain.copy.head}
        assert len(stream.reported_ranges()) == 1


def test_the_hot_tables_hold_the_chain_and_the_cursor_is_announced(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
        assert stream.rows() == chain.rows()
        chain.mine(1)
        assert not follower.step()
    assert stream.rows() == chain.rows()
    announced = [(event.dataset_uuid, event.cursor) for event in stream.events]
    assert announced[-3:] == [(output.dataset_uuid, 90) for output in stream.outputs]
    assert not stream.invalidations


@pytest.mark.parametrize("depth", [1, 2, 17, 64])
def test_a_reorganisation_is_rewritten_and_announced(
    chain: GrowingChain, stream: FollowedChain, depth: int
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
        before = stream.rows()
        chain.reorg(depth)
        catch_up(follower)
    assert stream.rows() == chain.rows() != before
    assert stream.reported_ranges() == [(90 - depth, 89)]
    assert {one["kind"] for one in stream.invalidations} == {"row_range"}
    assert all(one["is_reorganisation"] for one in stream.invalidations)
    query = "SELECT reorganisations, deepest FROM followers WHERE stream = %s"
    assert sql(stream.dsn, query, [stream.outputs[0].dataset_version]) == [(1, depth)]


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_follower_reports_how_far_it_is_behind_the_head(
    chain: GrowingChain, data: str, is_paused: bool
) -> None:
    stream = new_stream(data, batch=80, report_interval=0.0)
    stream.is_paused = is_paused
    times = [row["timestamp"] for row in chain.rows()["blocks"]]
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
        assert [(h.position, h.head) for h in stream.heads] == [(79, 89), (89, 89)]
        behind = stream.heads[0]
        assert (behind.position_time, behind.head_time) == (times[79], times[89])
        assert stream.heads[1].position_time == times[89]
    with stream.attempt(2, chain.url) as follower:
        catch_up(follower)
    assert stream.heads[2] == stream.heads[1]


def test_heads_are_reported_only_now_and_then(chain: GrowingChain, data: str) -> None:
    stream = new_stream(data, batch=10, report_interval=3600.0)
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
    assert len(stream.heads) == 1


def test_a_reorganisation_while_catching_up_is_followed(data: str) -> None:
    stream, plan = new_stream(data), ReorgAt(40, 5)
    with start_server(new_chain(initial=39, reorg_at=plan)) as server:
        chain = GrowingChain(server, new_chain(initial=39, reorg_at=plan))
        with stream.attempt(1, chain.url) as follower:
            catch_up(follower)
            chain.mine(30)
            catch_up(follower)
        assert stream.rows() == chain.rows()
        assert stream.reported_ranges() == [(36, 38)]


def test_a_reorganisation_between_two_attempts_is_detected(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
    chain.reorg(30)
    chain.mine(100)  # the last stored block is now below the finalized block
    with stream.attempt(2, chain.url) as follower:
        catch_up(follower)
    assert stream.rows() == chain.rows()
    assert stream.reported_ranges() == [(60, 89)]


def test_a_stream_that_starts_at_the_chain_head_has_no_gaps(data: str, chain: GrowingChain) -> None:
    stream = new_stream(data, start=None)
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
    chain.mine(250)
    with stream.attempt(2, chain.url) as follower:
        catch_up(follower)
    assert stream.rows() == chain.rows(start=89)


def test_catching_up_announces_the_cursor_at_most_once_per_interval(
    data: str, chain: GrowingChain
) -> None:
    stream = new_stream(data, batch=20, announce_interval=3600)
    with stream.attempt(1, chain.url) as follower:
        assert follower.step()  # the first step always announces
        assert follower.step()
        assert {event.cursor for event in stream.events} == {19}
    with stream.attempt(2, chain.url) as follower:
        assert {event.cursor for event in stream.events} == {
            19,
            39,
        }  # the unannounced step of attempt 1
        catch_up(follower)
    assert stream.events[-1].cursor == 89
    assert stream.rows() == chain.rows()


def test_all_stored_blocks_may_be_replaced_when_none_was_final(
    data: str, chain: GrowingChain
) -> None:
    stream = new_stream(data, start=80)
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
        chain.reorg(20)
        catch_up(follower)
    assert stream.rows() == chain.rows(start=80)
    assert stream.reported_ranges() == [(80, 89)]


class _Died(Exception):
    pass


def test_the_next_attempt_announces_what_the_previous_one_only_wrote(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
        chain.reorg(3)

        def die(*args: Any) -> None:
            raise _Died

        follower.emit = die
        with pytest.raises(_Died):
            follower.step()
    assert stream.rows() == chain.rows()
    assert stream.reported_ranges() == []
    with stream.attempt(2, chain.url) as follower:
        assert not follower.step()
    assert stream.reported_ranges() == [(87, 89)]
    with stream.attempt(3, chain.url):
        pass
    assert stream.reported_ranges() == [(87, 89)]  # announced only once


def test_an_attempt_that_fails_in_its_transaction_writes_nothing(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
    before = stream.rows()
    chain.reorg(5)
    lock = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$"
    sql(stream.dsn, lock)
    sql(
        stream.dsn,
        "CREATE TRIGGER t BEFORE UPDATE OF number ON followers EXECUTE FUNCTION fail()",
    )
    with stream.attempt(2, chain.url) as follower, pytest.raises(Exception, match="no"):
        follower.step()
    assert stream.rows() == before
    sql(stream.dsn, "DROP TRIGGER t ON followers")
    with stream.attempt(3, chain.url) as follower:
        catch_up(follower)
    assert stream.rows() == chain.rows()
    assert stream.reported_ranges() == [(85, 89)]


def test_a_stale_attempt_writes_nothing(chain: GrowingChain, stream: FollowedChain) -> None:
    with stream.attempt(1, chain.url) as old:
        catch_up(old)
        with stream.attempt(2, chain.url):
            before = stream.rows()
            chain.reorg(4)
            with pytest.raises(StaleWriter):
                old.step()
            assert stream.rows() == before
    with stream.unopened(1, chain.url) as late, pytest.raises(StaleWriter):
        late.open()


def test_a_task_that_another_task_replaced_cannot_write_again(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(7, chain.url):
        pass
    other = new_stream(stream.dsn).task_id
    with stream.attempt(1, chain.url, task_id=other) as follower:
        catch_up(follower)
    with stream.unopened(8, chain.url) as late, pytest.raises(StaleWriter):
        late.open()
    assert stream.rows() == chain.rows()


def test_a_block_that_was_final_is_not_rewritten(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
    before = stream.rows()
    with (
        start_server(new_chain(seed=8, initial=200)) as other,
        stream.attempt(2, other.url) as follower,
        pytest.raises(FinalityBroken, match=r"block 25 .* was final"),
    ):
        catch_up(follower)
    assert stream.rows() == before


def test_finality_of_replaced_blocks_does_not_make_the_stored_blocks_final(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with FaultyNode(chain.url) as node, stream.attempt(1, node.url) as follower:
        moves = [64]

        def before(calls: Calls) -> Reply | None:
            if calls[0]["params"][:1] == ["finalized"] and moves:
                chain.reorg(moves.pop())  # after the follower read the blocks
                chain.mine(10)
            return None

        node.before = before
        catch_up(follower)
        catch_up(follower)
    assert stream.rows() == chain.rows()
    assert stream.reported_ranges() == [(26, 89)]


def test_one_endpoint_that_calls_its_head_final_does_not_decide(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    def call_head_final(calls: Calls) -> None:
        for call in calls:
            if call["params"][:1] == ["finalized"]:
                call["params"][0] = "latest"

    with (
        FaultyNode(chain.url, change=call_head_final) as liar,
        stream.attempt(1, liar.url, chain.url) as follower,
    ):
        catch_up(follower)
        chain.reorg(5)
        chain.mine(1)
        catch_up(follower)
    assert stream.rows() == chain.rows()
    assert stream.reported_ranges() == [(85, 89)]


@pytest.mark.parametrize(
    "lie",
    [
        {"number": "0x" + "f" * 600},
        {"number": "-0x1"},
        {"timestamp": "-0x1"},
        {"timestamp": "0x" + "f" * 600},
        {"hash": "0x12"},
        {"hash": None},
    ],
    ids=str,
)
def test_a_head_without_a_block_is_not_followed(
    chain: GrowingChain, stream: FollowedChain, lie: dict[str, Any]
) -> None:
    def tell(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            if call["params"][:1] == ["latest"]:
                item["result"].update(lie)
        return items

    with FaultyNode(chain.url) as node, stream.attempt(1, node.url) as follower:
        catch_up(follower)
        before = stream.rows()
        chain.mine(1)
        node.after = tell
        with pytest.raises(ChainMismatch, match="of latest: the node's answer is not a block"):
            follower.step()
        assert stream.rows() == before


def test_a_fork_that_is_still_shorter_is_followed(stream: FollowedChain) -> None:
    with start_server(new_chain()) as server, stream.attempt(1, server.url) as follower:
        catch_up(follower)  # up to block 89
    with start_server(new_chain(initial=87)) as server, stream.attempt(2, server.url) as follower:
        fork = GrowingChain(server, new_chain(initial=87))
        fork.reorg(2)
        catch_up(follower)
        assert stream.rows() == fork.rows()
        assert stream.reported_ranges() == [(85, 89)]
        fork.mine(9)
        catch_up(follower)
        assert stream.rows() == fork.rows()


def test_the_next_attempt_continues_after_a_lost_database_connection(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    ends = "SELECT pg_terminate_backend(%s)"
    with stream.attempt(1, chain.url) as follower:
        sql(stream.dsn, ends, [follower.conn.info.backend_pid])
        with pytest.raises(DataUnavailable):
            follower.step()
    with stream.attempt(2, chain.url) as follower:
        catch_up(follower)
    assert stream.rows() == chain.rows()


def test_a_node_of_another_chain_is_refused(chain: GrowingChain, stream: FollowedChain) -> None:
    with stream.attempt(1, chain.url):
        pass
    with (
        start_server(new_chain(chain_id=5)) as other,
        stream.unopened(2, other.url) as follower,
        pytest.raises(OtherChain, match="chain 31337, not 5"),
    ):
        follower.open()


def test_a_head_that_moves_backwards_changes_nothing(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with FaultyNode(chain.url) as node, stream.attempt(1, node.url) as follower:
        catch_up(follower)
        before = stream.rows()

        def lag(calls: Calls) -> None:
            for call in calls:
                if call["params"][:1] == ["latest"]:
                    call["params"][0] = "0x50"

        node.change = lag
        assert not follower.step()
        assert stream.rows() == before and not stream.invalidations


def test_a_chain_that_changes_during_a_read_is_read_again(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with FaultyNode(chain.url) as node, stream.attempt(1, node.url, batch=5) as follower:
        catch_up(follower)
        chain.mine(30)
        moves = [31, 3]

        def before(calls: Calls) -> Reply | None:
            if calls[0]["method"] == "eth_getBlockReceipts" and moves:
                chain.reorg(moves.pop())
            return None

        node.before = before
        for _ in range(20):  # the last step may have read blocks that were replaced right after
            with suppress(ChainMismatch):
                follower.step()
            if not moves and stream.rows()["blocks"] == chain.rows()["blocks"]:
                break
    assert stream.rows() == chain.rows()
    assert stream.reported_ranges()[-1][0] == 89


def test_a_follower_waits_for_an_unavailable_node_and_stops_on_request(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with FaultyNode(chain.url) as node, stream.unopened(1, node.url, tries=1) as follower:
        refused: list[int] = []

        def flap(calls: Calls) -> Reply | None:
            if len(node.requests) % 2 and len(refused) < 10:
                refused.append(1)
                return Reply(503)
            return None

        node.before = flap
        announced = follower.emit

        def announce_and_stop(events: Any, invalidations: Any = ()) -> None:
            announced(events, invalidations)
            if events[0].cursor == 89:
                follower.stop.set()

        follower.emit = announce_and_stop
        follower.run()
    assert stream.rows() == chain.rows()
    assert len(refused) > 1


def test_a_very_large_block_is_followed(data: str) -> None:
    stream = new_stream(data)
    with (
        start_server(DevChain(3, 3, txs_per_block=200)) as server,
        stream.attempt(1, server.url) as follower,
    ):
        catch_up(follower)
    assert stream.rows() == expected(DevChain(3, 3, txs_per_block=200), 0, 2)


def test_the_operator_follows_until_it_is_canceled(
    chain: GrowingChain, data: str, tmp_path: Path
) -> None:
    def drop_logs(calls: Calls, items: Calls) -> Calls:
        for call, item in zip(calls, items, strict=True):
            for receipt in item["result"] if call["method"] == "eth_getBlockReceipts" else ():
                receipt["logs"] = []
        return items

    with FaultyNode(chain.url, after=drop_logs) as liar:
        follow_until_canceled(chain, data, tmp_path, (liar.url, chain.url))
    job = {"job": "test.block_follower"}
    assert REGISTRY.get_sample_value("trace_follower_block", job) == 91
    assert REGISTRY.get_sample_value("trace_follower_lag_blocks", job) == 0
    assert REGISTRY.get_sample_value("trace_follower_reorganisations_total", job) == 0
    assert REGISTRY.get_sample_value("trace_follower_rejected_answers_total", job)
    lagging = job | {"reason": "lagging"}
    assert REGISTRY.get_sample_value("trace_follower_endpoints_set_aside_total", lagging) == 0


def follow_until_canceled(
    chain: GrowingChain, data: str, tmp_path: Path, urls: tuple[str, ...]
) -> None:
    pools = {"default": urls}
    runner = SparkRunner(
        SparkSettings(FileStore(tmp_path), tmp_path, rpc_pools=pools, data_dsn=data)
    )
    names = ("hot_blocks", "hot_transactions", "hot_logs")
    payload = task("block_follower", {"start_block": 80, "poll_seconds": 0.05}, names)
    stream = FollowedChain(data, hot_outputs(payload))
    announced: Queue[int | None] = Queue()

    def report(events: Any, invalidations: Any = ()) -> None:
        stream.report(events, invalidations)
        announced.put(events[0].cursor)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run, payload, DispatcherLink(report))
        assert announced.get(timeout=120) == 89
        chain.mine(2)
        assert announced.get(timeout=120) == 91
        runner.cancel(payload.task_id)
        with pytest.raises(TaskCanceled):
            running.result(timeout=120)
    assert stream.rows() == chain.rows(start=80)
