"""Backpressure: single rules, and random graphs and loads, which must always drain completely."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from trace_etl.policy.backpressure import (
    SHED_ALL,
    SHED_BULK,
    JobLoad,
    QueueLimits,
    QueueLoad,
    Trip,
    decide_trip,
    plan_pauses,
)

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ESCALATE_AFTER = timedelta(seconds=5)


def decide(trip: Trip | None, limits: QueueLimits, load: JobLoad, after: int = 0) -> Trip | None:
    now = NOW + timedelta(seconds=after)
    return decide_trip(trip, limits, load, now=now, escalate_after=ESCALATE_AFTER)


def normal(depth: int, age: float = 0.0) -> JobLoad:
    return JobLoad(normal=QueueLoad(depth, age))


def bulk(depth: int, age: float = 0.0) -> JobLoad:
    return JobLoad(bulk=QueueLoad(depth, age))


TEN = QueueLimits(depth=10)


def test_a_queue_trips_at_its_limit_and_clears_at_half_of_it() -> None:
    assert decide(None, TEN, normal(9)) is None
    tripped = decide(None, TEN, normal(10))
    assert tripped == Trip(SHED_BULK, "depth", 10, 10, NOW, NOW)
    assert decide(tripped, TEN, normal(6), 60) == tripped
    assert decide(tripped, TEN, normal(5), 60) is None


def test_normal_work_is_paused_only_if_pressure_stays_after_bulk_work_is_paused() -> None:
    tripped = decide(None, TEN, normal(10))
    assert tripped and tripped.tier == "bulk"
    assert decide(tripped, TEN, normal(12), 4) == tripped
    worse = decide(tripped, TEN, normal(12), 5)
    assert worse and (worse.tier, worse.measured, worse.since) == ("normal", 12, NOW)
    better = decide(worse, TEN, normal(5), 9)
    assert better and better.tier == "bulk"
    assert decide(better, TEN, normal(5), 9) is None


def test_a_queue_at_twice_its_limit_pauses_normal_work_without_a_delay() -> None:
    tripped = decide(None, TEN, normal(20))
    assert tripped and tripped.tier == "bulk"
    worse = decide(tripped, TEN, normal(20))
    assert worse and worse.tier == "normal"


def test_a_queue_of_bulk_work_never_pauses_normal_work() -> None:
    tripped = decide(None, TEN, bulk(1000, 900.0))
    assert tripped == decide(tripped, TEN, bulk(1000, 900.0), 900)


def test_paused_bulk_work_does_not_trip_a_queue_but_keeps_it_from_clearing() -> None:
    waiting = JobLoad(bulk=QueueLoad(10), sheds_bulk=True)
    assert decide(None, TEN, waiting) is None
    tripped = decide(None, TEN, bulk(10))
    assert decide(tripped, TEN, waiting) == tripped


def test_a_queue_trips_by_the_age_of_its_oldest_task() -> None:
    limits = QueueLimits(age=60)
    assert decide(None, limits, normal(1, 59.0)) is None
    tripped = decide(None, limits, normal(1, 61.5))
    assert tripped and tripped.description == "oldest task queued for 61 s, limit 60 s"
    assert decide(tripped, limits, normal(1, 31.0)) == tripped
    assert decide(tripped, limits, normal(1, 30.0)) is None
    assert decide(tripped, limits, JobLoad()) is None


def test_a_queue_clears_after_its_limits_are_removed() -> None:
    worse = Trip(SHED_ALL, "depth", 10, 10, NOW, NOW)
    better = decide(worse, QueueLimits(), normal(1000))
    assert better and better.level == SHED_BULK
    assert decide(better, QueueLimits(), normal(1000)) is None


def tripped(*jobs: str, level: int = SHED_BULK) -> dict[str, Trip]:
    return {job: Trip(level, "depth", 1, 1, NOW, NOW) for job in jobs}


def edges(text: str) -> list[tuple[str, str]]:
    return [(pair[0], pair[1]) for pair in text.split()]


def test_every_job_upstream_is_paused_once_even_with_several_paths() -> None:
    pauses = plan_pauses(tripped("d", level=SHED_ALL), edges("sa sb ad bd de xe"))
    assert pauses == {("a", "d"): "normal", ("b", "d"): "normal", ("s", "d"): "normal"}


def test_jobs_on_a_cycle_never_wait_for_each_other() -> None:
    cycle = edges("sa ab bc ca cd")
    assert plan_pauses(tripped("a"), cycle) == {("s", "a"): "bulk"}
    assert plan_pauses(tripped("a", "b"), cycle) == {("s", "a"): "bulk", ("s", "b"): "bulk"}
    assert set(plan_pauses(tripped("d"), cycle)) == {(job, "d") for job in "sabc"}
    assert plan_pauses(tripped("a"), edges("aa")) == {}


# --- simulation ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    job: int
    bulk: bool
    hops: int
    """How many more jobs it may reach, so that cycles end."""
    queued: int


@dataclass
class World:
    """Simulated jobs with queues and a few workers. Backpressure is decided at every tick."""

    edges: list[tuple[int, int]]
    limits: dict[int, QueueLimits]
    workers: int
    ticks: int = 0
    queued: list[Task] = field(default_factory=list)
    deferred: list[Task] = field(default_factory=list)
    trips: dict[int, Trip] = field(default_factory=dict)
    paused: dict[tuple[int, int], str] = field(default_factory=dict)
    ran: Counter[tuple[int, bool, int]] = field(default_factory=Counter)
    arrived: Counter[int] = field(default_factory=Counter)
    arrived_at_clear: dict[int, int] = field(default_factory=dict)

    def is_paused(self, job: int, is_bulk: bool) -> bool:
        tiers = {tier for (paused, _), tier in self.paused.items() if paused == job}
        return "normal" in tiers or (is_bulk and "bulk" in tiers)

    def offer(self, task: Task) -> None:
        if self.is_paused(task.job, task.bulk):
            self.deferred.append(task)
        else:
            self.arrived[task.job] += 1
            self.queued.append(Task(task.job, task.bulk, task.hops, self.ticks))

    def tick(self) -> int:
        """Decide the pauses, queue deferred tasks, run tasks. Returns the number of tasks that ran."""
        self.ticks += 1
        self._decide_pauses()
        deferred, self.deferred = self.deferred, []
        for task in deferred:
            self.offer(task)
        ready = [t for t in self.queued if not self.is_paused(t.job, t.bulk)]
        ready.sort(key=lambda t: (t.bulk, t.queued))
        for task in ready[: self.workers]:
            self._run(task)
        return len(ready[: self.workers])

    def _run(self, task: Task) -> None:
        self.queued.remove(task)
        self.ran[task.job, task.bulk, task.hops] += 1
        for producer, consumer in self.edges:
            if producer == task.job and task.hops:
                self.offer(Task(consumer, task.bulk, task.hops - 1, 0))

    def load(self, job: int) -> JobLoad:
        parts: dict[bool, list[Task]] = {False: [], True: []}
        for task in self.queued:
            if task.job == job:
                parts[task.bulk].append(task)
        sheds = any(paused == job for paused, _ in self.paused)
        return JobLoad(self._queue(parts[False]), self._queue(parts[True]), sheds)

    def _queue(self, tasks: list[Task]) -> QueueLoad:
        oldest = min((t.queued for t in tasks), default=self.ticks)
        return QueueLoad(len(tasks), float(self.ticks - oldest))

    def _decide_pauses(self) -> None:
        now = NOW + timedelta(seconds=self.ticks)
        after: dict[int, Trip] = {}
        for job, limits in self.limits.items():
            before, load = self.trips.get(job), self.load(job)
            trip = decide_trip(before, limits, load, now=now, escalate_after=timedelta(seconds=3))
            self._check(job, before, trip, load)
            if trip:
                after[job] = trip
        self.trips = after
        self.paused = dict(plan_pauses(after, self.edges))
        self._check_progress_is_possible()

    def _check(self, job: int, before: Trip | None, after: Trip | None, load: JobLoad) -> None:
        """Check that levels change by one, and that a cleared queue trips again only with new tasks."""
        levels = (before.level if before else 0, after.level if after else 0)
        assert abs(levels[1] - levels[0]) <= 1
        limits = self.limits[job]
        if levels == (0, 1) and limits.age is None and limits.depth is not None:
            since = self.arrived[job] - self.arrived_at_clear.get(job, -limits.depth)
            assert since >= limits.depth - limits.depth // 2
        if levels == (1, 0):
            assert limits.depth is None or load.total.depth <= limits.depth // 2
        if before and not after:
            self.arrived_at_clear[job] = self.arrived[job]

    def _check_progress_is_possible(self) -> None:
        paused = {job for job, _ in self.paused}
        assert not self.trips or set(self.trips) - paused, "every tripped queue waits for another"


def shapes(count: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return edges: none, a chain, a diamond or a ring, and random pairs."""
    names = st.integers(0, count - 1)
    chain = [(n, n + 1) for n in range(count - 1)]
    diamond = [(0, n) for n in range(1, count - 1)] + [(n, count - 1) for n in range(1, count - 1)]
    base = st.sampled_from([[], chain, diamond, [*chain, (count - 1, 0)]])
    extra = st.lists(st.tuples(names, names), max_size=count)
    return st.builds(lambda one, other: sorted({*one, *other}), base, extra)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[Task]]:
    count = draw(st.integers(2, 6))
    names = st.integers(0, count - 1)
    pairs = draw(shapes(count))
    limit = st.builds(
        QueueLimits, depth=st.none() | st.integers(1, 6), age=st.none() | st.integers(1, 10)
    )
    limits = {job: draw(limit) for job in range(count)}
    work = draw(
        st.lists(
            st.builds(
                Task, job=names, bulk=st.booleans(), hops=st.integers(0, 4), queued=st.just(0)
            ),
            min_size=1,
            max_size=40,
        )
    )
    return World(pairs, limits, draw(st.integers(1, 3))), work


@settings(max_examples=200)
@given(worlds(), st.integers(1, 10))
def test_random_loads_over_random_graphs_always_drain(
    drawn: tuple[World, list[Task]], batch_size: int
) -> None:
    world, work = drawn
    expected = run_without_backpressure(world.edges, work)
    if expected.total() > 600:
        return
    idle = 0
    while work or world.queued or world.deferred or world.trips:
        for task in work[:batch_size]:
            world.offer(task)
        work = work[batch_size:]
        ran = world.tick()
        # Age clears as tasks run. The escalation delay and one level per decision bound the rest.
        idle = 0 if ran else idle + 1
        assert idle < 10, "tasks wait, but none of them runs"
    assert world.ran == expected
    assert world.paused == {}


def run_without_backpressure(
    links: list[tuple[int, int]], work: list[Task]
) -> Counter[tuple[int, bool, int]]:
    """Return the tasks that run without backpressure."""
    ran: Counter[tuple[int, bool, int]] = Counter()
    left = Counter((t.job, t.bulk, t.hops) for t in work)
    while left:
        (job, is_bulk, hops), times = left.popitem()
        ran[job, is_bulk, hops] += times
        for producer, consumer in links:
            if producer == job and hops:
                left[consumer, is_bulk, hops - 1] += times
    return ran
