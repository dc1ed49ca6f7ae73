"""Any order of deploys, rollbacks, new blocks and work ends with everything built and shown."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.lifecycle import Attempt, Bench
from support.rollouts import RolloutDag

TEXTS: list[dict[str, Any]] = [
    {},
    {"column": 2},
    {"last": 2},
    {"column": 2, "last": 2},
    {"size": 15},
    {"options": "max_attempts: 7"},
    {"work": "labour"},
    {"ranges": "spans"},
]
JOBS = ("work", "labour", "after")


@dataclass
class World:
    """What should be there, beside what is."""

    story: RolloutDag
    chance: random.Random
    asked: set[int] = field(default_factory=set)
    history: list[dict[str, Any]] = field(default_factory=list)
    running: list[Attempt] = field(default_factory=list)

    def shown(self, name: str) -> set[int]:
        keys = [key.split("-") for key in self.story.seen(name)[1]]
        return {block for first, last in keys for block in range(int(first), int(last) + 1)}

    # --- steps ------------------------------------------------------------------------------

    def ask(self) -> None:
        start = 30 * self.chance.randrange(6)
        self.story.trigger(start, start + 29)
        self.asked |= set(range(start, start + 30))

    def deploy(self) -> None:
        change = self.chance.choice(TEXTS)
        reply = self.story.deploy(**change)
        if reply["changed"]:
            self.history.append(change)

    def roll_back(self) -> None:
        reply = self.story.roll_back()
        assert reply.status_code in (200, 409), reply.text

    def work(self) -> None:
        self.story.bench.live.drain()
        waiting = [task for job in JOBS for task in self.story.queued(job)]
        for task_id in self.chance.sample(waiting, min(len(waiting), self.chance.randrange(1, 7))):
            self.story.finish(task_id)

    def claim(self) -> None:
        """A worker takes a task and is slow."""
        if waiting := [task for job in JOBS for task in self.story.queued(job)]:
            self.running.append(self.story.bench.claimed(self.chance.choice(waiting)))

    def return_late(self) -> None:
        """The slow worker comes back: done, or stopped as it was told, or too late."""
        if not self.running:
            return
        attempt = self.running.pop(self.chance.randrange(len(self.running)))
        told = self.story.bench.heartbeat(attempt)
        if told.status_code == 200 and told.json()["cancel_requested"]:
            reply = self.story.bench.complete(attempt, "Canceled")
        else:
            reply = self.story.bench.complete(
                attempt,
                datasets_published=[self.story.bench.write_output(attempt)],
                events=[attempt.event()],
            )
        assert reply.status_code in (200, 409), reply.text

    def swap(self) -> None:
        self.story.swap()

    # --- the end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Everybody works until nothing is left."""
        while self.running:
            self.return_late()
        for _ in range(20):
            done = self.story.finish_all(*JOBS)
            self.story.bench.live.run(self.story.bench.live.service.reconciler.reconcile_once)
            if self.story.rollout()["state"] != "building" and not done:
                return
            self.swap()
        raise AssertionError(self.story.rollout())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_everything_asked_for_is_shown_in_the_end(
    shared: Bench, seed: int
) -> None:
    world = World(RolloutDag(shared), random.Random(seed))
    world.story.deploy()
    world.ask()
    steps = [world.ask, world.deploy, world.roll_back, world.claim, world.return_late, world.swap]
    for _ in range(24):
        step = world.chance.choice([*steps, world.work, world.work, world.work])
        before = {name: world.shown(name) for name in ("out", "done")}
        step()
        if step != world.roll_back:  # only the way back may show less
            for name, blocks in before.items():
                assert blocks <= world.shown(name), (step.__name__, name)
    world.finish()
    assert world.shown("out") == world.asked
    assert world.shown("done") == world.asked
    left = shared.rows(
        """SELECT t.status, count(*)
             FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
            WHERE g.name = %s AND t.status IN ('Queued', 'Running') GROUP BY t.status""",
        world.story.name,
    )
    assert left == []
