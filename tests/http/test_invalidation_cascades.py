"""After any sequence of invalidations, every output equals a rebuild, and each consumer's copy equals it."""

from collections.abc import Generator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.data.cascade import JOBS, CascadeDag
from support.data.delivery_consumer import DeliveryConsumer
from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied


@pytest.fixture(scope="module")
def own_bench(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A Dispatcher whose reconciler has no grace period."""
    objects = tmp_path_factory.mktemp("objects")
    with (
        copied(templates) as dsns,
        live(secrets, dsns, objects, reconcile_grace=timedelta(0)) as running,
        bench(running) as opened,
    ):
        yield opened


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


def run_step(dag: CascadeDag, step: tuple) -> None:
    match step:
        case ("reorganise" | "trigger" as action, (first, last)):
            getattr(dag, action)(first, last)
        case ("partition", output, cell):
            dag.invalidate(output, partition_key=f"{cell * 10}-{cell * 10 + 9}")
        case ("rebuild", (first, last)):
            dag.invalidate("base", start=first, end=last, rebuild=True)
        case (action, n):
            getattr(dag, action)(n)
        case (action,):
            getattr(dag, action)()


@settings(max_examples=settings.default.max_examples // 3, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=5, max_size=25))
@example([("publish",), ("claim", 0), ("reorganise", (0, 19)), ("finish", 0)])
def test_after_any_sequence_every_output_equals_a_rebuild(own_bench: Bench, sequence: list) -> None:
    dag = CascadeDag(own_bench).deploy()
    consumers = [DeliveryConsumer(own_bench, f"{dag.name}_{name}") for name in ("base", "both")]
    try:
        dag.trigger(0, 19)
        dag.publish()
        for step in sequence:
            run_step(dag, step)
            for consumer in consumers:
                consumer.catch_up()
                assert consumer.copy == consumer.read()
        dag.settle()
        for consumer in consumers:
            consumer.catch_up()
            assert consumer.copy == consumer.read() and not consumer.resets
        assert {job: dag.visible_rows(job) for job in JOBS} == {
            job: dag.expected_rows(job) for job in JOBS
        }
        assert unprocessed(dag) == []
    finally:
        dag.close()


def unprocessed(dag: CascadeDag) -> list[dict]:
    """Return the tasks required by invalidations that are still unprocessed."""
    return dag.bench.rows(
        """
        SELECT c.*, t.status, t.error_message FROM invalidation_consumers c
          JOIN tasks t USING (task_id) JOIN jobs j ON j.job_id = c.job_id JOIN dags g USING (dag_id)
         WHERE g.name = %s AND c.processed_at IS NULL
        """,
        dag.name,
    )
