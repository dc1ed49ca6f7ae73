"""Against a real node: mining, reorganisations and kills at random moments, and nothing is wrong.

`TRACE_CHAIN_SEED` draws another story, `TRACE_CHAIN_ROUNDS` a longer one.
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

from support import anvil, follow_process
from support.anvil import Anvil
from support.chain_rows import rows_of
from support.following import FollowedChain, new_stream
from support.postgres import sql
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
    """The follower's processes, one after another, each killed without warning."""

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
        """Nothing but a kill may end it."""
        assert self._process is not None
        assert self._process.poll() is None, self._errors.read_text()

    def told(self) -> list[dict[str, Any]]:
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


@pytest.mark.timeout(900)
def test_the_hot_tables_hold_exactly_the_canonical_chain_whatever_happened(
    node: Anvil, attempts: tuple[FollowedChain, Attempts]
) -> None:
    stream, followers = attempts
    draw = random.Random(SEED)
    rounds = ROUNDS if followers.engine == "loop" else ROUNDS * 3 // 10  # a kill costs a JVM
    node.mine(draw.randint(DEEPEST + 1, 120), [1, 2, 3])
    followers.next()
    kills, deepest = 0, 0
    for _ in range(rounds):
        values = [draw.randint(1, 2**200) for _ in range(draw.randint(0, 4))]
        match draw.choice(["mine", "mine", "reorg", "reorg", "kill", "settle"]):
            case "mine":
                node.mine(draw.randint(1, 30), values)
            case "reorg":
                depth = draw.choice([1, 1, 2, 3, draw.randint(4, DEEPEST), DEEPEST])
                deepest = max(deepest, depth)
                node.reorg(depth, values)
            case "kill":
                if followers.engine == "streaming":  # else it would always be killed as it starts
                    _wait_until_caught_up(stream, node, followers)
                    node.mine(draw.randint(1, 60), values)
                time.sleep(draw.random() * 0.4)  # at any instant: that is what is tested
                followers.kill()
                kills += 1
                if draw.random() < 0.5:
                    node.reorg(draw.randint(1, DEEPEST), values)
                followers.next()
            case _:
                _wait_until_caught_up(stream, node, followers)
    _wait_until_caught_up(stream, node, followers)
    followers.kill()

    assert kills and deepest == DEEPEST, "a tame story: choose another seed"
    assert stream.rows() == rows_of(node.blocks(), CHAIN_ID)
    _check_told(stream, followers.told())


def _check_told(stream: FollowedChain, told: list[dict[str, Any]]) -> None:
    """Every rewrite was told, none is left over, and the last word is where the chain ends."""
    [(number, rewrites)] = sql(stream.dsn, "SELECT number, reorganisations FROM followers")
    assert told[-1]["cursor"] == number
    assert sql(stream.dsn, "SELECT count(*) FROM follower_rewrites") == [(0,)]
    ranges = [one for entry in told for one in entry["ranges"]]
    assert rewrites and len(ranges) >= rewrites  # a kill may have one told twice


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
