"""A follower reads from the best endpoint of its pool: others lag, lie about their head, or serve another chain."""

from collections.abc import Generator
from contextlib import suppress

import pytest

from support.chain.growing_chain import GrowingChain, new_chain
from support.chain.head_faults import boasting_node, lagging_node
from support.services.postgres import Templates, copied
from support.spark.following import FollowedChain, catch_up, new_stream
from support.waiting import eventually
from trace_etl.data.errors import OtherChain
from trace_etl.devtools.devchain import start_server
from trace_etl.spark.errors import ChainMismatch, DifferentChains
from trace_etl.spark.evm.head_watch import HeadClaim, find_faults
from trace_etl.spark.evm.options import EvmOptions
from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE
from trace_etl.spark.evm.stream import EvmStreamReader
from trace_etl.spark.follow.follower import ChainFollower


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SET_ASIDE, "_until", {})  # the port of another test's node may be reused


@pytest.fixture
def chain() -> Generator[GrowingChain]:
    with start_server(new_chain()) as server:
        yield GrowingChain(server, new_chain())


@pytest.fixture(scope="module")
def data(templates: Templates) -> Generator[str]:
    with copied(templates) as fresh:
        yield fresh.data


@pytest.fixture
def stream(data: str) -> FollowedChain:
    return new_stream(data)


def follow_to(follower: ChainFollower, chain: GrowingChain) -> None:
    """Step until the follower holds the chain."""

    def is_there() -> bool:
        with suppress(ChainMismatch):
            follower.step()
        last = follower.recent.last
        return last is not None and last.number == chain.copy.head

    eventually(is_there, "the follower holds the chain")


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_endpoint_that_lags_is_set_aside(
    chain: GrowingChain, stream: FollowedChain, is_frozen: bool
) -> None:
    with (
        lagging_node(chain.url, lambda: 89 if is_frozen else chain.copy.head - 3) as node,
        stream.attempt(1, node.url, chain.url, compare_seconds=0) as follower,
    ):
        while (last := follower.recent.last) is None or last.number < 86:
            follower.step()
        chain.mine(5)
        follow_to(follower, chain)
        assert stream.rows() == chain.rows()
        assert SET_ASIDE.includes(node.url) and not SET_ASIDE.includes(chain.url)
    assert stream.set_aside == ["lagging"]
    assert not stream.invalidations


def test_an_endpoint_that_stopped_on_a_replaced_block_is_set_aside(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with start_server(new_chain()) as frozen:
        urls = frozen.url, chain.url
        with stream.attempt(1, *urls, compare_seconds=0) as follower:
            catch_up(follower)
            chain.reorg(3)
            chain.mine(2)
            follow_to(follower, chain)
            assert stream.rows() == chain.rows()
    assert stream.set_aside == ["lagging"]
    assert stream.reported_ranges() == [(87, 89)]


def test_a_head_that_does_not_exist_stops_no_follower(chain: GrowingChain, data: str) -> None:
    stream = new_stream(data, start=None)
    with boasting_node(chain.url) as liar, lagging_node(chain.url, lambda: 89) as frozen:
        urls = liar.url, frozen.url, chain.url
        with stream.attempt(1, *urls, compare_seconds=0) as follower:
            assert follower.start == 89
            chain.mine(5)
            follow_to(follower, chain)
            assert stream.rows() == chain.rows(start=89)
            eventually(
                lambda: follower.step() or len(set(stream.set_aside)) == 2, "both are set aside"
            )
            assert not SET_ASIDE.includes(chain.url)
    assert set(stream.set_aside) == {"unproven_head", "lagging"}


def claim(url: str, head: int, proven: int | None, *, is_trusted: bool = True) -> HeadClaim:
    return HeadClaim(url, url, head, proven, is_trusted=is_trusted)


def test_an_endpoint_needs_the_same_fault_in_two_comparisons_to_be_set_aside() -> None:
    def judge(*comparisons: list[HeadClaim]) -> list[tuple[str, str]]:
        return [(one.url, reason) for one, reason in find_faults(comparisons[1], comparisons[0])]

    before = [claim("a", 10, 10), claim("b", 12, 12), claim("c", 99, None)]
    assert judge([], before) == []
    assert judge(before, before) == [("a", "lagging"), ("c", "unproven_head")]
    moved = [claim("a", 12, 12), claim("b", 14, 14), claim("c", 14, 14)]
    assert judge(before, moved) == []  # less than one comparison behind
    assert judge(moved, before) == [("a", "lagging")]
    replaced = [claim("a", 10, 10), claim("b", 9, 9), claim("c", 10, 10)]
    assert judge(before, replaced) == [("b", "lagging")]  # no endpoint has block 12 any more
    liars = [claim("a", 10, None), claim("b", 12, None)]
    assert judge(liars, liars) == []  # no endpoint is better
    aside = [claim("a", 10, 10), claim("b", 12, 12, is_trusted=False)]
    assert judge(aside, aside) == []  # endpoints that are set aside do not count


def test_executors_read_from_the_endpoints_that_the_planner_trusts(
    chain: GrowingChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lagging_node(chain.url, lambda: 89) as node:
        urls = f"{node.url} {chain.url}"
        options = EvmOptions.parse({"rpc_url": urls, "dataset": "blocks", "start": "0"})
        planner = EvmStreamReader(options)
        begin, end = planner.initialOffset(), {"first": 0, "number": 9}
        SET_ASIDE.add(node.url)
        ranges = planner.partitions(begin, end)
        monkeypatch.setattr(SET_ASIDE, "_until", {})  # an executor is another process
        rows = [batch.num_rows for one in ranges for batch in planner.read(one)]
        assert sum(rows) == 10
        assert set(node.methods()) == {"eth_chainId"}


def test_endpoints_of_different_chains_fail_at_once(chain: GrowingChain, data: str) -> None:
    stream = new_stream(data, timeout=0.0)  # a fault that is waited for ends as ChainMismatch
    with start_server(new_chain(chain_id=5)) as other:
        told = rf"31337 \({chain.url.removeprefix('http://')}\), 5 \({other.url.removeprefix('http://')}\)"
        with (
            stream.unopened(1, chain.url, other.url) as follower,
            pytest.raises(DifferentChains, match=told),
        ):
            follower.run()
    assert stream.position() == []


def test_an_endpoint_of_another_chain_than_the_stored_one_is_not_used(
    chain: GrowingChain, stream: FollowedChain
) -> None:
    with stream.attempt(1, chain.url) as follower:
        catch_up(follower)
    with start_server(new_chain(seed=8, chain_id=5, initial=200)) as other:
        with stream.attempt(2, other.url, chain.url) as follower:
            chain.mine(2)
            catch_up(follower)
        assert stream.rows() == chain.rows()
        assert stream.set_aside == ["other_chain"] and follower.reader.urls == (chain.url,)
        with (
            stream.unopened(3, other.url) as follower,
            pytest.raises(OtherChain, match="chain 31337, not 5"),
        ):
            follower.run()
