"""Deploy plans. Changed jobs and all jobs downstream get new generations, for any edit of any DAG."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.dags.dags import QUICKSTART
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.dag import Dag, Job, JobInput
from trace_etl.model.deploy_plan import GenerationContents
from trace_etl.policy.deploy.deploy_plan import (
    DeployedState,
    DeployPlan,
    find_affected_jobs,
    find_differences,
    plan_deploy,
)
from trace_etl.policy.deploy.generations import generation_hashes, job_definition

TEMPLATE = parse_dag(QUICKSTART).job("receivers")
CONTENTS = GenerationContents(2, 2, 0, 0, [(0, 19)], 0)
EMPTY = GenerationContents(0, 0, 0, 0, [], 0)


def job(name: str, upstream: list[str]) -> Job:
    return replace(
        TEMPLATE,
        name=name,
        outputs=("out",),
        inputs=tuple(JobInput(f"i_{u}", job=u, output="out") for u in upstream),
    )


def deployed(dag: Dag, contents: GenerationContents = CONTENTS) -> dict[str, DeployedState]:
    """Return the state of the DAG as if it were deployed, with contents in every generation."""
    hashes = generation_hashes(dag)
    return {
        j.name: DeployedState(
            job_definition(j), hashes[j.name], True, dict.fromkeys(j.outputs, contents)
        )
        for j in dag.jobs
    }


def published(dag: Dag) -> dict[str, str]:
    return {p.name: f"{p.job}.{p.output}" for p in dag.publish}


def plan_edit(before: Dag, after: Dag) -> DeployPlan:
    return plan_deploy(deployed(before), published(before), after)


# --- random edits -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    before: Dag
    after: Dag
    changed: frozenset[str]
    """Jobs that were added, or whose definition of rows changed."""


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    size = draw(st.integers(1, 12))
    jobs: list[Job] = []
    for n in range(size):
        upstream = draw(st.lists(st.sampled_from(range(n)), max_size=3, unique=True)) if n else []
        jobs.append(job(f"j{n}", [f"j{u}" for u in upstream]))
    after = {j.name: j for j in jobs}
    changed: set[str] = set()
    for _ in range(draw(st.integers(0, 5))):
        EDITS[draw(st.sampled_from(sorted(EDITS)))](draw, after, changed)
    order = draw(st.permutations(sorted(after)))
    dags = Dag("d", tuple(jobs), ()), Dag("d", tuple(after[name] for name in order), ())
    was = {j.name: j for j in jobs}
    real = {n for n in changed if n in after and (n not in was or not are_equal(was[n], after[n]))}
    return Edit(*dags, frozenset(real))


def are_equal(left: Job, right: Job) -> bool:
    """Return whether the edits of a job cancel out."""
    return (left.config, left.inputs, left.outputs) == (right.config, right.inputs, right.outputs)


def choose_job(draw: st.DrawFn, jobs: dict[str, Job]) -> str:
    return draw(st.sampled_from(sorted(jobs)))


def change_config(draw: st.DrawFn, jobs: dict[str, Job], changed: set[str]) -> None:
    name = choose_job(draw, jobs)
    jobs[name] = replace(jobs[name], config={"sql": f"SELECT {draw(st.integers(0, 3))}"})
    changed.add(name)


def change_retries(draw: st.DrawFn, jobs: dict[str, Job], changed: set[str]) -> None:
    name = choose_job(draw, jobs)
    edited = replace(jobs[name], max_attempts=draw(st.integers(1, 9)), priority="bulk")
    jobs[name] = replace(edited, timeout_seconds=draw(st.integers(1, 99)), max_queue_depth=5)


def change_where(draw: st.DrawFn, jobs: dict[str, Job], changed: set[str]) -> None:
    name = choose_job(draw, jobs)
    where = {"a": draw(st.integers(0, 3))}
    jobs[name] = replace(
        jobs[name], inputs=tuple(replace(i, where=where) for i in jobs[name].inputs)
    )
    changed.add(name)


def add_job(draw: st.DrawFn, jobs: dict[str, Job], changed: set[str]) -> None:
    name = f"n{len(jobs)}_{draw(st.integers(0, 99))}"
    if name not in jobs:
        jobs[name] = job(name, [choose_job(draw, jobs)])
        changed.add(name)


def remove_job(draw: st.DrawFn, jobs: dict[str, Job], changed: set[str]) -> None:
    """Remove a job, and the inputs of other jobs that read from it."""
    name = choose_job(draw, jobs)
    if len(jobs) == 1:
        return
    del jobs[name]
    for reader in [j for j in jobs.values() if any(i.job == name for i in j.inputs)]:
        inputs = tuple(i for i in reader.inputs if i.job != name)
        jobs[reader.name] = replace(reader, inputs=inputs)
        changed.add(reader.name)


def add_output(draw: st.DrawFn, jobs: dict[str, Job], changed: set[str]) -> None:
    name = choose_job(draw, jobs)
    jobs[name] = replace(jobs[name], outputs=("out", "more"))
    changed.add(name)


EDITS = {
    edit.__name__: edit
    for edit in (change_config, change_retries, change_where, add_job, remove_job, add_output)
}


def add_downstream(dag: Dag, names: frozenset[str]) -> set[str]:
    """Return the jobs and all jobs downstream of them."""
    reached: set[str] = set(names)
    while more := {
        j.name
        for j in dag.jobs
        if j.name not in reached and any(i.job in reached for i in j.inputs)
    }:
        reached |= more
    return reached


@given(edits())
def test_new_generations_are_exactly_the_changed_jobs_and_their_descendants(edit: Edit) -> None:
    plan = plan_edit(edit.before, edit.after)
    new = {j.name for j in plan.jobs if j.has_new_generation}
    assert new == add_downstream(edit.after, edit.changed)


@given(edits())
def test_every_job_has_one_action_and_every_new_generation_has_a_reason(edit: Edit) -> None:
    plan = plan_edit(edit.before, edit.after)
    was = {j.name for j in edit.before.jobs}
    now = {j.name for j in edit.after.jobs}
    assert sorted(j.name for j in plan.jobs) == sorted(was | now)
    for item in plan.jobs:
        if item.name not in was:
            assert (item.change, item.action) == ("added", "start")
        elif item.name not in now:
            assert (item.change, item.action) == ("removed", "retire")
        elif item.has_new_generation:
            assert item.action == "build"
            assert item.because
            assert bool(item.fields) or all(
                reason.startswith("upstream ") for reason in item.because
            )
            assert item.rebuild
        else:
            assert item.action == ("adopt" if item.fields else "keep")


@given(edits())
def test_the_plan_for_an_unchanged_dag_is_empty(edit: Edit) -> None:
    plan = plan_edit(edit.after, edit.after)
    assert not (plan.names or plan.added_columns)
    assert {job.action for job in plan.jobs} == {"keep"}


@given(edits())
def test_the_affected_jobs_are_those_that_are_rebuilt_or_removed(edit: Edit) -> None:
    plan = plan_edit(edit.before, edit.after)
    affected = set(find_affected_jobs(deployed(edit.before), {}, edit.after))
    expected = {j.name for j in plan.jobs if j.action in ("build", "retire")}
    assert affected == expected


# --- single rules -----------------------------------------------------------------------------


def action_of(plan: DeployPlan, name: str) -> str:
    return next(j.action for j in plan.jobs if j.name == name)


def test_a_new_generation_starts_immediately_when_the_old_one_is_empty() -> None:
    before, after = parse_dag(QUICKSTART), parse_dag(QUICKSTART.replace("AS n", "AS m"))
    plan = plan_deploy(deployed(before, EMPTY), published(before), after)
    assert action_of(plan, "receivers") == "start"
    assert not plan.builds


def test_a_removed_job_that_returns_adopts_its_old_generation() -> None:
    dag = parse_dag(QUICKSTART)
    before = deployed(dag)
    before["receivers"] = replace(before["receivers"], active=False)
    plan = plan_deploy(before, published(dag), dag)
    assert action_of(plan, "receivers") == "adopt"


def test_a_deploy_of_the_live_definition_adopts_it_and_ends_the_build() -> None:
    dag = parse_dag(QUICKSTART)
    before = deployed(dag)
    before["receivers"] = replace(before["receivers"], building="another")
    assert action_of(plan_deploy(before, published(dag), dag), "receivers") == "adopt"


def test_the_plan_lists_names_that_are_added_removed_and_moved() -> None:
    before = parse_dag(QUICKSTART)
    text = QUICKSTART.replace("{name: blocks, from: {job: ingest, output: blocks}}", "").replace(
        "  - {name: receivers, from: {job: receivers}}",
        "  - {name: receivers, from: {job: ingest, output: logs}}\n"
        "  - {name: top, from: {job: receivers}}",
    )
    plan = plan_edit(before, parse_dag(text.replace("  - \n", "")))
    names = {n.name: (n.before, n.after, n.rebuild is not None) for n in plan.names}
    assert names == {
        "blocks": ("ingest.blocks", None, False),
        "receivers": ("receivers.receivers", "ingest.logs", True),
        "top": (None, "receivers.receivers", False),
    }
    assert plan.builds


def test_a_difference_names_the_longest_path() -> None:
    before = {"config": {"a": 1, "b": [1]}, "inputs": [{"name": "x", "where": None}], "n": 1}
    after = {
        "config": {"a": 2, "b": [1, 2]},
        "inputs": [{"name": "x", "where": {"k": 1}}],
        "n": True,
    }
    differences = {
        change.field: (change.before, change.after) for change in find_differences(before, after)
    }
    assert differences == {
        "config.a": (1, 2),
        "config.b": ([1], [1, 2]),
        "inputs[0].where": (None, {"k": 1}),
        "n": (1, True),
    }


TICKS = """
name: ticks
jobs:
  - {name: minute, source: {kind: cron, schedule: "* * * * *"}, outputs: [ticks]}
  - name: counts
    operator: sql
    inputs: [{from: {job: minute}}]
    outputs: [counts]
    update_strategy: append
    unique_key: [at]
    config: {sql: "SELECT :scheduled_time AS at"}
publish:
  - {name: counts, from: {job: counts}, MODE}
"""
BUFFERED = "write_mode: buffered, schema: [{name: at, type: timestamp, nullable: false}]"


@pytest.mark.parametrize(
    ("mode", "contents", "lost"),
    [
        ("storage: postgres", CONTENTS, ["counts"]),
        ("storage: postgres", EMPTY, []),
        (BUFFERED, CONTENTS, []),
    ],
    ids=["rows", "no rows", "buffered"],
)
def test_appended_rows_of_past_ticks_are_lost_only_in_a_table_with_rows(
    mode: str, contents: GenerationContents, lost: list[str]
) -> None:
    before = parse_dag(TICKS.replace("MODE", mode))
    after = parse_dag(TICKS.replace("MODE", mode).replace("AS at", "AS at, 1 AS n"))
    plan = plan_deploy(deployed(before, contents), published(before), after)
    assert plan.losing_rows == lost
    assert plan_deploy(deployed(before), published(before), before).losing_rows == []


def test_the_plan_counts_the_tasks_of_a_rebuild_apart_from_its_partitions() -> None:
    before = Dag("d", (job("a", []), job("b", ["a"])), ())
    after = replace(
        before, jobs=(job("a", []), replace(job("b", ["a"]), config={"sql": "SELECT 2"}))
    )
    contents = replace(EMPTY, scopes=73, partitions=73, tasks=3)
    plan = plan_deploy(deployed(before, contents), published(before), after)
    assert (plan.rebuilt_partitions, plan.rebuilding_tasks) == (73, 3)
