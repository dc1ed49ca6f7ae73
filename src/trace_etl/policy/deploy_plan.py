"""What a deploy would do, as data: built here, printed by the CLI, executed by `state`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from trace_etl.model.dag import Dag, Job
from trace_etl.policy.generations import SHAPING, definition, generation_hashes, tuning_of

Change = Literal["added", "changed", "removed", "unchanged"]
Action = Literal["keep", "adopt", "start", "build", "retire"]


@dataclass(frozen=True)
class GenerationContents:
    """What a generation holds: partitions, or the scopes of its events if it has none."""

    scopes: int = 0
    partitions: int = 0
    row_count: int = 0
    byte_count: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Blocks, joined where they touch."""


@dataclass(frozen=True)
class DeployedState:
    """A job as it is deployed now."""

    definition: dict[str, Any]
    generation: str
    active: bool
    stock: dict[str, GenerationContents]
    """By output; what readers see of it."""
    building: str | None = None
    """The generation that is being built beside it."""

    @property
    def serves(self) -> bool:
        return any(stock.scopes for stock in self.stock.values())


@dataclass(frozen=True)
class FieldDifference:
    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class PlannedJob:
    """What becomes of one job.

    keep: nothing. adopt: the new definition counts at once, on the same generation. start: a new
    generation that is current at once, since there is nothing to serve. build: a new generation
    beside the old one, until it is complete. retire: the job is gone.
    """

    name: str
    change: Change
    action: Action
    generation: str | None
    fields: list[FieldDifference]
    because: list[str]
    """Why its outputs get a new generation: fields of its own, or jobs upstream."""
    rebuild: dict[str, GenerationContents]
    """By output: what the old generation holds and the new one must cover."""

    @property
    def has_new_generation(self) -> bool:
        return self.action in ("start", "build")


@dataclass(frozen=True)
class PlannedName:
    """A published name and the output behind it, as `job.output`; None: there is no such name."""

    name: str
    before: str | None
    after: str | None
    rebuild: GenerationContents | None = None
    """What the old output holds, if the name has to wait until the new one covers it."""
    readers: list[str] = field(default_factory=list[str])
    """Jobs of other DAGs, as `dag.job`, that read what loses its name and will get nothing new."""


@dataclass(frozen=True)
class DeployPlan:
    jobs: list[PlannedJob]
    names: list[PlannedName]

    @property
    def builds(self) -> bool:
        """Whether anything is built beside the old, so that the pointers move later."""
        return any(job.action == "build" for job in self.jobs) or any(
            name.rebuild for name in self.names
        )

    @property
    def is_empty(self) -> bool:
        return not self.names and all(job.action == "keep" for job in self.jobs)


def plan_deploy(
    before: Mapping[str, DeployedState],
    published: Mapping[str, str],
    dag: Dag,
    readers: Mapping[str, list[str]] | None = None,
) -> DeployPlan:
    """The way from what is deployed to a new file. `published`: name → `job.output` as of now."""
    generations = generation_hashes(dag)
    changed = {
        job.name
        for job in dag.jobs
        if job.name not in before or before[job.name].generation != generations[job.name]
    }
    jobs = [_job_plan(job, before.get(job.name), generations, changed) for job in dag.jobs]
    names = {job.name for job in dag.jobs}
    gone = [n for n, standing in before.items() if n not in names and standing.active]
    jobs += [PlannedJob(name, "removed", "retire", None, [], [], {}) for name in sorted(gone)]
    return DeployPlan(jobs, _names(before, published, dag, readers or {}))


def find_affected_jobs(
    before: Mapping[str, DeployedState], published: Mapping[str, str], dag: Dag
) -> list[str]:
    """The deployed jobs that lose something: a generation, a published name, or all."""
    generations = generation_hashes(dag)
    after = published_outputs(dag)
    unnamed = {old.partition(".")[0] for name, old in published.items() if after.get(name) != old}
    return [
        name
        for name, was in before.items()
        if was.active and (name in unnamed or was.generation != generations.get(name))
    ]


def _job_plan(
    job: Job, was: DeployedState | None, generations: Mapping[str, str], changed: set[str]
) -> PlannedJob:
    generation = generations[job.name]
    if was is None or not was.active:
        known = was is not None and was.generation == generation
        action: Action = "adopt" if known else "start"
        return PlannedJob(job.name, "added", action, generation, [], [], {})
    fields = list(differences(was.definition, definition(job)))
    change: Change = "changed" if fields else "unchanged"
    if job.name not in changed:
        action = "adopt" if fields or was.building else "keep"
        return PlannedJob(job.name, change, action, generation, fields, [], {})
    action = "build" if was.serves else "start"
    because = _reasons(job, fields, changed)
    return PlannedJob(job.name, change, action, generation, fields, because, was.stock)


def _reasons(job: Job, fields: list[FieldDifference], changed: set[str]) -> list[str]:
    tuning = {f"config.{name}" for name in tuning_of(job.operator)}
    own = [
        f.field
        for f in fields
        if f.field.split(".")[0].split("[")[0] in SHAPING and f.field not in tuning
    ]
    upstream = sorted({i.job for i in job.inputs if i.job in changed})
    # Neither: what is written stays the same, but goes to another dataset.
    return own + [f"upstream {name}" for name in upstream] or ["publish"]


def published_outputs(dag: Dag) -> dict[str, str]:
    """The outputs behind each published name, as `job.output`: several, if it is buffered."""
    found: dict[str, list[str]] = {}
    for entry in dag.publish:
        found.setdefault(entry.name, []).append(f"{entry.job}.{entry.output}")
    return {name: ", ".join(sorted(outputs)) for name, outputs in found.items()}


def _names(
    before: Mapping[str, DeployedState],
    published: Mapping[str, str],
    dag: Dag,
    readers: Mapping[str, list[str]],
) -> list[PlannedName]:
    after = published_outputs(dag)
    # Nothing waits for a buffered dataset to be covered: it is there as long as it has a producer.
    shared = {p.name for p in dag.publish if p.write_mode == "buffered"}
    return [
        PlannedName(
            name,
            old,
            new,
            _held(before, old) if old and new and name not in shared else None,
            [] if name in shared else readers.get(name, []),
        )
        for name in sorted(published.keys() | after.keys())
        if (old := published.get(name)) != (new := after.get(name))
    ]


def _held(before: Mapping[str, DeployedState], place: str) -> GenerationContents | None:
    job, _, output = place.partition(".")
    stock = before[job].stock.get(output) if job in before else None
    return stock if stock and stock.scopes else None


def differences(before: object, after: object, path: str = "") -> Iterator[FieldDifference]:
    """Every field that differs, the deepest that says it."""
    if isinstance(before, dict) and isinstance(after, dict):
        old = cast(dict[str, object], before)
        new = cast(dict[str, object], after)
        for key in [*old, *(k for k in new if k not in old)]:
            place = f"{path}.{key}" if path else key
            yield from differences(old.get(key), new.get(key), place)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(cast(list[object], before), cast(list[object], after), path)
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield FieldDifference(path, before, after)


def _items(before: list[object], after: list[object], path: str) -> Iterator[FieldDifference]:
    nested = all(isinstance(item, dict) for item in [*before, *after])
    if len(before) != len(after) or not nested:
        if before != after:
            yield FieldDifference(path, before, after)
        return
    for n, (old, new) in enumerate(zip(before, after, strict=True)):
        yield from differences(old, new, f"{path}[{n}]")
