"""Plans: for any edit of any DAG, new generations are what changed and what is below it."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from support.dags import QUICKSTART
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.dag import Dag, Job, JobInput
from trace_etl.policy.deploy_plan import (
    DeployedState,
    DeployPlan,
    GenerationContents,
    differences,
    find_affected_jobs,
    plan_deploy,
)
from trace_etl.policy.generations import definition, generation_hashes

TEMPLATE = parse_dag(QUICKSTART).job("receivers")
HELD = GenerationContents(scopes=2, partitions=2, ranges=[(0, 19)])


def job(name: str, upstream: list[str]) -> Job:
    return replace(
        TEMPLATE,
        name=name,
        outputs=("out",),
        inputs=tuple(JobInput(f"i_{u}", job=u, output="out") for u in upstream),
    )


def standing(dag: Dag, stock: GenerationContents = HELD) -> dict[str, DeployedState]:
    """The DAG as if it were deployed, with something in every generation."""
    hashes = generation_hashes(dag)
    return {
        j.name: DeployedState(definition(j), hashes[j.name], True, dict.fromkeys(j.outputs, stock))
        for j in dag.jobs
    }


def published(dag: Dag) -> dict[str, str]:
    return {p.name: f"{p.job}.{p.output}" for p in dag.publish}


def planned(before: Dag, after: Dag) -> DeployPlan:
    return plan_deploy(standing(before), published(before), after)


# --- random edits -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    before: Dag
    after: Dag
    shaped: frozenset[str]
    """Jobs that were added, or whose own rows would be others."""


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    size = draw(st.integers(1, 12))
    jobs: list[Job] = []
    for n in range(size):
        upstream = draw(st.lists(st.sampled_from(range(n)), max_size=3, unique=True)) if n else []
        jobs.append(job(f"j{n}", [f"j{u}" for u in upstream]))
    after = {j.name: j for j in jobs}
    shaped: set[str] = set()
    for _ in range(draw(st.integers(0, 5))):
        EDITS[draw(st.sampled_from(sorted(EDITS)))](draw, after, shaped)
    order = draw(st.permutations(sorted(after)))
    dags = Dag("d", tuple(jobs), ()), Dag("d", tuple(after[name] for name in order), ())
    was = {j.name: j for j in jobs}
    real = {n for n in shaped if n in after and (n not in was or not alike(was[n], after[n]))}
    return Edit(*dags, frozenset(real))


def alike(one: Job, other: Job) -> bool:
    """Whether two edits took each other back."""
    return (one.config, one.inputs, one.outputs) == (other.config, other.inputs, other.outputs)


def chosen(draw: st.DrawFn, jobs: dict[str, Job]) -> str:
    return draw(st.sampled_from(sorted(jobs)))


def change_config(draw: st.DrawFn, jobs: dict[str, Job], shaped: set[str]) -> None:
    name = chosen(draw, jobs)
    jobs[name] = replace(jobs[name], config={"sql": f"SELECT {draw(st.integers(0, 3))}"})
    shaped.add(name)


def change_retries(draw: st.DrawFn, jobs: dict[str, Job], shaped: set[str]) -> None:
    name = chosen(draw, jobs)
    changed = replace(jobs[name], max_attempts=draw(st.integers(1, 9)), priority="bulk")
    jobs[name] = replace(changed, timeout_seconds=draw(st.integers(1, 99)), max_queue_depth=5)


def change_where(draw: st.DrawFn, jobs: dict[str, Job], shaped: set[str]) -> None:
    name = chosen(draw, jobs)
    where = {"a": draw(st.integers(0, 3))}
    jobs[name] = replace(
        jobs[name], inputs=tuple(replace(i, where=where) for i in jobs[name].inputs)
    )
    shaped.add(name)


def add_job(draw: st.DrawFn, jobs: dict[str, Job], shaped: set[str]) -> None:
    name = f"n{len(jobs)}_{draw(st.integers(0, 99))}"
    if name not in jobs:
        jobs[name] = job(name, [chosen(draw, jobs)])
        shaped.add(name)


def remove_job(draw: st.DrawFn, jobs: dict[str, Job], shaped: set[str]) -> None:
    """Whoever read it reads nothing of it any more."""
    name = chosen(draw, jobs)
    if len(jobs) == 1:
        return
    del jobs[name]
    for reader in [j for j in jobs.values() if any(i.job == name for i in j.inputs)]:
        inputs = tuple(i for i in reader.inputs if i.job != name)
        jobs[reader.name] = replace(reader, inputs=inputs)
        shaped.add(reader.name)


def add_output(draw: st.DrawFn, jobs: dict[str, Job], shaped: set[str]) -> None:
    name = chosen(draw, jobs)
    jobs[name] = replace(jobs[name], outputs=("out", "more"))
    shaped.add(name)


EDITS = {
    edit.__name__: edit
    for edit in (change_config, change_retries, change_where, add_job, remove_job, add_output)
}


def below(dag: Dag, names: frozenset[str]) -> set[str]:
    """Jobs and everything that reads of them, however far."""
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
    plan = planned(edit.before, edit.after)
    new = {j.name for j in plan.jobs if j.has_new_generation}
    assert new == below(edit.after, edit.shaped)


@given(edits())
def test_every_new_generation_says_why_and_every_job_has_one_fate(edit: Edit) -> None:
    plan = planned(edit.before, edit.after)
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
            assert bool(item.fields) or all(why.startswith("upstream ") for why in item.because)
            assert item.rebuild
        else:
            assert item.action == ("adopt" if item.fields else "keep")


@given(edits())
def test_what_is_deployed_needs_no_plan(edit: Edit) -> None:
    assert planned(edit.after, edit.after).is_empty


@given(edits())
def test_only_of_jobs_that_lose_something_the_stock_is_asked_for(edit: Edit) -> None:
    plan = planned(edit.before, edit.after)
    asked = set(find_affected_jobs(standing(edit.before), {}, edit.after))
    losing = {j.name for j in plan.jobs if j.action in ("build", "retire")}
    assert asked == losing


# --- single rules -----------------------------------------------------------------------------


def fate(plan: DeployPlan, name: str) -> str:
    return next(j.action for j in plan.jobs if j.name == name)


def test_with_nothing_to_serve_a_new_generation_starts_at_once() -> None:
    before, after = parse_dag(QUICKSTART), parse_dag(QUICKSTART.replace("AS n", "AS m"))
    plan = plan_deploy(standing(before, GenerationContents()), published(before), after)
    assert fate(plan, "receivers") == "start"
    assert not plan.builds


def test_a_job_that_returns_is_taken_up_with_its_generation() -> None:
    dag = parse_dag(QUICKSTART)
    before = standing(dag)
    before["receivers"] = replace(before["receivers"], active=False)
    plan = plan_deploy(before, published(dag), dag)
    assert fate(plan, "receivers") == "adopt"


def test_going_back_to_what_is_live_gives_up_what_is_being_built() -> None:
    dag = parse_dag(QUICKSTART)
    before = standing(dag)
    before["receivers"] = replace(before["receivers"], building="another")
    assert fate(plan_deploy(before, published(dag), dag), "receivers") == "adopt"


def test_names_that_come_go_and_move_are_told() -> None:
    before = parse_dag(QUICKSTART)
    text = QUICKSTART.replace("{name: blocks, from: {job: ingest, output: blocks}}", "").replace(
        "  - {name: receivers, from: {job: receivers}}",
        "  - {name: receivers, from: {job: ingest, output: logs}}\n"
        "  - {name: top, from: {job: receivers}}",
    )
    plan = planned(before, parse_dag(text.replace("  - \n", "")))
    told = {n.name: (n.before, n.after, n.rebuild is not None) for n in plan.names}
    assert told == {
        "blocks": ("ingest.blocks", None, False),
        "receivers": ("receivers.receivers", "ingest.logs", True),
        "top": (None, "receivers.receivers", False),
    }
    assert plan.builds


def test_differences_name_the_deepest_field() -> None:
    before = {"config": {"a": 1, "b": [1]}, "inputs": [{"name": "x", "where": None}], "n": 1}
    after = {
        "config": {"a": 2, "b": [1, 2]},
        "inputs": [{"name": "x", "where": {"k": 1}}],
        "n": True,
    }
    found = {change.field: (change.before, change.after) for change in differences(before, after)}
    assert found == {
        "config.a": (1, 2),
        "config.b": ([1], [1, 2]),
        "inputs[0].where": (None, {"k": 1}),
        "n": (1, True),
    }
