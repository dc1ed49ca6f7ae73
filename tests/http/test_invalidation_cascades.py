"""After any sequence of invalidations, every output equals a rebuild from scratch."""

from collections.abc import Generator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.cascade import JOBS, CascadeDag
from support.dispatcher import Secrets, live
from support.lifecycle import Bench, bench
from support.postgres import Templates, copied


@pytest.fixture(scope="module")
def stage(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A Dispatcher whose reconciler waits for nobody."""
    objects = tmp_path_factory.mktemp("objects")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, reconcile_grace=timedelta(0)) as running,
        bench(running) as made,
    ):
        yield made


nth = st.integers(0, 30)
blocks = st.sampled_from([(0, 9), (0, 19), (3, 4), (8, 12), (15, 15), (10, 19)])
steps = st.one_of(
    st.tuples(st.just("claim"), nth),
    st.tuples(st.just("finish"), nth),
    st.tuples(st.just("claim"), nth),
    st.tuples(st.just("finish"), nth),
    st.tuples(st.just("publish")),
    st.tuples(st.just("publish")),
    st.tuples(st.just("reorganise"), blocks),
    st.tuples(st.just("reorganise"), blocks),
    st.tuples(st.just("finish_all")),
    st.tuples(st.just("trigger"), st.sampled_from([(0, 9), (0, 19), (20, 29)])),
    st.tuples(st.just("repeat"), nth),
    st.tuples(st.just("kill"), nth),
    st.tuples(st.just("expire_lease"), nth),
    st.tuples(st.just("lose_routing")),
    st.tuples(st.just("reconcile")),
    st.tuples(st.just("partition"), st.sampled_from(["base", "left"]), st.integers(0, 1)),
    st.tuples(st.just("rebuild"), blocks),
)


def play(world: CascadeDag, step: tuple) -> None:
    match step:
        case ("reorganise" | "trigger" as what, (first, last)):
            getattr(world, what)(first, last)
        case ("partition", output, cell):
            world.invalidate(output, partition_key=f"{cell * 10}-{cell * 10 + 9}")
        case ("rebuild", (first, last)):
            world.invalidate("base", start=first, end=last, rebuild=True)
        case (what, n):
            getattr(world, what)(n)
        case (what,):
            getattr(world, what)()


@settings(max_examples=settings.default.max_examples // 3, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=5, max_size=25))
@example([("publish",), ("claim", 0), ("reorganise", (0, 19)), ("finish", 0)])
def test_after_any_sequence_every_output_equals_a_rebuild(stage: Bench, story: list) -> None:
    world = CascadeDag(stage).deploy()
    try:
        world.trigger(0, 19)
        world.publish()
        for step in story:
            play(world, step)
        world.settle()
        assert {job: world.visible_rows(job) for job in JOBS} == {
            job: world.expected_rows(job) for job in JOBS
        }
        assert unprocessed(world) == []
    finally:
        world.close()


def unprocessed(world: CascadeDag) -> list[dict]:
    """What an invalidation asked for and nobody did."""
    return world.bench.rows(
        """
        SELECT c.*, t.status, t.error_message FROM invalidation_consumers c
          JOIN tasks t USING (task_id) JOIN jobs j ON j.job_id = c.job_id JOIN dags g USING (dag_id)
         WHERE g.name = %s AND c.processed_at IS NULL
        """,
        world.name,
    )
