"""Random sequences of deploys, rollbacks, triggers and work end with every block built and visible."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from support.dags.rollouts import RolloutDag
from support.data.delivery_consumer import DeliveryConsumer
from support.lifecycle.lifecycle import Attempt, Bench

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
class RandomRollout:
    """A DAG, the blocks triggered so far, and the attempts that are running."""

    dag: RolloutDag
    random: Random
    triggered: set[int] = field(default_factory=set)
    history: list[dict[str, Any]] = field(default_factory=list)
    running: list[Attempt] = field(default_factory=list)

    def visible_blocks(self, name: str) -> set[int]:
        keys = [key.split("-") for key in self.dag.seen(name)[1]]
        return {block for first, last in keys for block in range(int(first), int(last) + 1)}

    # --- steps ------------------------------------------------------------------------------

    def trigger(self) -> None:
        start = 30 * self.random.randrange(6)
        self.dag.trigger(start, start + 29)
        self.triggered |= set(range(start, start + 30))

    def deploy(self) -> None:
        change = self.random.choice(TEXTS)
        reply = self.dag.deploy(**change)
        if reply["changed"]:
            self.history.append(change)

    def roll_back(self) -> None:
        reply = self.dag.roll_back()
        assert reply.status_code in (200, 409), reply.text

    def work(self) -> None:
        self.dag.bench.live.drain()
        waiting = [task for job in JOBS for task in self.dag.queued(job)]
        for task_id in self.random.sample(waiting, min(len(waiting), self.random.randrange(1, 7))):
            self.dag.finish(task_id)

    def claim(self) -> None:
        """Claim a task for a slow worker."""
        if waiting := [task for job in JOBS for task in self.dag.queued(job)]:
            self.running.append(self.dag.bench.claimed(self.random.choice(waiting)))

    def return_late(self) -> None:
        """Let a slow worker complete its task, or end it as canceled if that was requested."""
        if not self.running:
            return
        attempt = self.running.pop(self.random.randrange(len(self.running)))
        heartbeat = self.dag.bench.heartbeat(attempt)
        if heartbeat.status_code == 200 and heartbeat.json()["cancel_requested"]:
            reply = self.dag.bench.complete(attempt, "Canceled")
        else:
            reply = self.dag.bench.complete(
                attempt,
                datasets_published=[self.dag.bench.write_output(attempt)],
                events=[attempt.event()],
            )
        assert reply.status_code in (200, 409), reply.text

    def swap(self) -> None:
        self.dag.swap()

    # --- the end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Run all workers and loops until no work is left."""
        while self.running:
            self.return_late()
        for _ in range(20):
            finished = self.dag.finish_all(*JOBS)
            self.dag.bench.live.run(self.dag.bench.live.service.reconciler.reconcile_once)
            if self.dag.rollout()["state"] != "building" and not finished:
                return
            self.swap()
        raise AssertionError(self.dag.rollout())


@pytest.mark.parametrize("seed", range(3))
def test_every_triggered_block_is_visible_after_any_sequence_of_steps(
    shared: Bench, seed: int
) -> None:
    rollout = RandomRollout(RolloutDag(shared), Random(seed))
    rollout.dag.deploy()
    rollout.trigger()
    consumers = [DeliveryConsumer(shared, f"{rollout.dag.name}_{name}") for name in ("out", "done")]
    steps = [
        rollout.trigger,
        rollout.deploy,
        rollout.roll_back,
        rollout.claim,
        rollout.return_late,
        rollout.swap,
    ]
    for _ in range(24):
        step = rollout.random.choice([*steps, rollout.work, rollout.work, rollout.work])
        before = {name: rollout.visible_blocks(name) for name in ("out", "done")}
        step()
        if step != rollout.roll_back:  # only a rollback may hide blocks
            for name, blocks in before.items():
                assert blocks <= rollout.visible_blocks(name), (step.__name__, name)
        for consumer in consumers:
            consumer.catch_up()
            assert consumer.copy == consumer.read(), (step.__name__, consumer.changes)
    rollout.finish()
    for consumer in consumers:
        consumer.catch_up()
        assert consumer.copy == consumer.read()
    assert rollout.visible_blocks("out") == rollout.triggered
    assert rollout.visible_blocks("done") == rollout.triggered
    remaining = shared.rows(
        """SELECT t.status, count(*)
             FROM tasks t JOIN jobs j USING (job_id) JOIN dags g USING (dag_id)
            WHERE g.name = %s AND t.status IN ('Queued', 'Running') GROUP BY t.status""",
        rollout.dag.name,
    )
    assert remaining == []
