"""A generation that was swept and comes back: its blocks are triggered once."""

from datetime import timedelta

from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Live
from trace_etl.state.db.pool import transaction
from trace_etl.state.storage import retired_generations


def sweep_all(bench: Bench) -> None:
    async def sweep() -> None:
        for _ in range(20):
            async with transaction(bench.live.service.retention.pool) as conn:
                await retired_generations.sweep(
                    conn, retention=timedelta(seconds=-1), org_id=None, limit=1000
                )

    bench.live.run(sweep)


def events_per_block(bench: Bench, dag: RolloutDag, output: str) -> dict[int, int]:
    """Count the events of each block in the current generation of an output."""
    found = bench.rows(
        """SELECT b AS block, count(*) AS events
             FROM events e JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)
             JOIN dags g USING (dag_id), generate_series(e.range_start, e.range_end) b
            WHERE g.name = %s AND d.output_name = %s AND e.dataset_version = d.dataset_version
            GROUP BY b""",
        dag.name,
        output,
    )
    return {row["block"]: row["events"] for row in found}


def build(dag: RolloutDag, **change: str | int) -> None:
    dag.deploy(**change)
    dag.finish_all("work", "after")
    assert dag.swap()
    dag.finish_all("work", "after")


def test_blocks_are_triggered_once_after_a_return_to_a_swept_generation(dispatcher: Live) -> None:
    """The Dispatcher has a database of its own, because the sweep finds the generations of every DAG."""
    with bench(dispatcher) as own_bench:
        _return_to_a_swept_generation(own_bench)


def _return_to_a_swept_generation(own_bench: Bench) -> None:
    dag = RolloutDag(own_bench)
    dag.deploy_and_build(0, 29)
    build(dag, ranges="spans", size=5)
    dag.trigger(25, 44)
    dag.finish_all("work", "after")
    build(dag, ranges="third", size=7)
    sweep_all(own_bench)
    swept = "SELECT count(*) AS n FROM dataset_versions WHERE swept_at IS NOT NULL"
    assert own_bench.rows(swept)[0]["n"] > 0, "nothing was swept"

    build(dag)  # the first text again, whose generations are empty
    dag.trigger(20, 59)
    dag.finish_all("work", "after")
    once = dict.fromkeys(range(60), 1)
    assert events_per_block(own_bench, dag, "ranges") == once
    assert events_per_block(own_bench, dag, "pieces") == once
    spans = [tuple(map(int, key.split("-"))) for key in dag.seen("out")[1]]
    blocks = sorted(n for start, end in spans for n in range(start, end + 1))
    assert blocks == list(range(60))
    dag.trigger(0, 59)
    assert dag.finish_all("work", "after") == 0
