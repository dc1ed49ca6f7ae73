"""A follower on a real node is correct after mining, reorganisations and kills at random times.

Set `TRACE_CHAIN_SEED` for another sequence and `TRACE_CHAIN_ROUNDS` for a longer one.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from support.chain import anvil
from support.chain.anvil import Anvil
from support.chain.chain_rows import rows_of
from support.services.postgres import sql
from support.spark import follow_process
from support.spark.following import FollowedChain, new_stream
from trace_etl.lite.postgres.databases import Dsns

SEED = int(os.environ.get("TRACE_CHAIN_SEED", "7"))
ROUNDS = int(os.environ.get("TRACE_CHAIN_ROUNDS", "40"))
DEEPEST = 64
CHAIN_ID = 31337


@pytest.fixture
def node() -> Generator[Anvil]:
    with anvil.running(Path(__file__).parent) as made:
        yield made


class Attempts:
    """The processes of the follower, one after another. Each is killed without warning."""

    def __init__(self, stream: FollowedChain, url: str, directory: Path, engine: str) -> None:
        self.engine = engine
        self._plan, self.report_file = directory / "plan.json", directory / "reports"
        self._errors = directory / "errors"
        self.report_file.touch()
        outputs = [
            {
                "kind": output.kind,
                "table": output.table,
                "dataset": str(output.dataset_uuid),
                "version": str(output.dataset_version),
            }
            for output in stream.outputs
        ]
        plan = {"url": url, "dsn": stream.dsn, "outputs": outputs, "batch": 20}
        plan |= {
            "engine": engine,
            "task_id": str(stream.task_id),
            "report_file": str(self.report_file),
        }
        self._plan.write_text(json.dumps(plan))
        self.number = 0
        self._process: subprocess.Popen[bytes] | None = None

    def next(self) -> None:
        self.number += 1
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, follow_process.__file__, self._plan, str(self.number)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def kill(self) -> None:
        if self._process is not None:
            self.check()
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Fail if the process ended without a kill."""
        assert self._process is not None
        assert self._process.poll() is None, self._errors.read_text()

    def announced(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.report_file.read_text().splitlines()]


@pytest.fixture(params=["loop", "streaming"])
def attempts(
    dsns: Dsns, node: Anvil, tmp_path: Path, request: pytest.FixtureRequest
) -> Generator[tuple[FollowedChain, Attempts]]:
    stream = new_stream(dsns.data)
    made = Attempts(stream, node.url, tmp_path, request.param)
    yield stream, made
    made.kill()


def _tip(node: Anvil) -> tuple[int, bytes]:
    block = node.call("eth_getBlockByNumber", "latest", False)
    return int(block["number"], 16), bytes.fromhex(block["hash"].removeprefix("0x"))


def _wait_until_caught_up(stream: FollowedChain, node: Anvil, attempts: Attempts) -> None:
    until = time.monotonic() + 120  # a JVM may have to start
    while not stream.is_at(*_tip(node)):
        attempts.check()
        assert time.monotonic() < until, f"{stream.position()} is not yet {_tip(node)}"
        time.sleep(0.02)


def test_the_hot_tables_equal_the_canonical_chain_after_reorganisations_and_kills(
    node: Anvil, attempts: tuple[FollowedChain, Attempts]
) -> None:
    stream, followers = attempts
    rng = random.Random(SEED)
    rounds = ROUNDS if followers.engine == "loop" else ROUNDS * 3 // 10  # a restart starts a JVM
    node.mine(rng.randint(DEEPEST + 1, 120), [1, 2, 3])
    followers.next()
    kills, deepest = 0, 0
    for _ in range(rounds):
        values = [rng.randint(1, 2**200) for _ in range(rng.randint(0, 4))]
        match rng.choice(["mine", "mine", "reorg", "reorg", "kill", "settle"]):
            case "mine":
                node.mine(rng.randint(1, 30), values)
            case "reorg":
                depth = rng.choice([1, 1, 2, 3, rng.randint(4, DEEPEST), DEEPEST])
                deepest = max(deepest, depth)
                node.reorg(depth, values)
            case "kill":
                if followers.engine == "streaming":  # otherwise every kill would hit the start
                    _wait_until_caught_up(stream, node, followers)
                    node.mine(rng.randint(1, 60), values)
                time.sleep(rng.random() * 0.4)  # kill at a random time: this is what is tested
                followers.kill()
                kills += 1
                if rng.random() < 0.5:
                    node.reorg(rng.randint(1, DEEPEST), values)
                followers.next()
            case _:
                _wait_until_caught_up(stream, node, followers)
    _wait_until_caught_up(stream, node, followers)
    followers.kill()

    assert kills and deepest == DEEPEST, "too few kills or reorganisations: choose another seed"
    assert stream.rows() == rows_of(node.blocks(), CHAIN_ID)
    check_announcements(stream, followers.announced())


def check_announcements(stream: FollowedChain, announced: list[dict[str, Any]]) -> None:
    """Every rewrite was announced, and the last announced cursor is the head of the chain."""
    [(number, rewrites)] = sql(stream.dsn, "SELECT number, reorganisations FROM followers")
    assert announced[-1]["cursor"] == number
    assert sql(stream.dsn, "SELECT count(*) FROM follower_rewrites") == [(0,)]
    ranges = [one for entry in announced for one in entry["ranges"]]
    assert rewrites and len(ranges) >= rewrites  # after a kill a rewrite may be announced twice


@pytest.mark.parametrize("attempts", ["loop"], indirect=True)
def test_every_depth_of_reorganisation_is_rewritten(
    node: Anvil, attempts: tuple[FollowedChain, Attempts]
) -> None:
    stream, followers = attempts
    node.mine(DEEPEST + 10, [5])
    followers.next()
    depths = [*range(1, DEEPEST + 1, 7)]
    for depth in depths:
        _wait_until_caught_up(stream, node, followers)
        node.reorg(depth, [depth])
        node.mine(1)
    _wait_until_caught_up(stream, node, followers)
    followers.kill()
    assert stream.rows() == rows_of(node.blocks(), CHAIN_ID)
    assert sql(stream.dsn, "SELECT reorganisations, deepest FROM followers") == [
        (len(depths), DEEPEST)
    ]
