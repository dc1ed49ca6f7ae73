"""Plan what a deploy does. The CLI prints the plan, `state` executes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from trace_etl.model.dag import Dag, Job, JobAction, JobChange
from trace_etl.model.deploy_plan import (
    AddedColumn,
    FieldDifference,
    GenerationContents,
    PlannedJob,
    PlannedName,
)
from trace_etl.policy.deploy.generations import (
    GENERATION_FIELDS,
    generation_hashes,
    job_definition,
    tuning_fields,
)


@dataclass(frozen=True)
class DeployedState:
    definition: dict[str, Any]
    generation: str
    active: bool
    contents: dict[str, GenerationContents]
    """The contents that readers see, by output."""
    building: str | None = None
    """The generation that is being built beside the current one."""

    @property
    def has_contents(self) -> bool:
        return any(contents.scopes for contents in self.contents.values())


@dataclass(frozen=True)
class DeployPlan:
    """The actions of a deploy, for jobs and for published names."""

    jobs: list[PlannedJob]
    names: list[PlannedName]
    losing_rows: list[str]
    """Jobs whose new generation lacks appended rows that cannot be made again."""
    added_columns: list[AddedColumn] = field(default_factory=list[AddedColumn])

    @property
    def builds(self) -> bool:
        """Whether a generation is built beside the old one, so that the pointers move later."""
        return any(job.action == "build" for job in self.jobs) or any(
            name.rebuild for name in self.names
        )

    @property
    def rebuilt_partitions(self) -> int:
        """How many partitions the new generations must cover, each counted once."""
        return sum(contents.partitions for outputs in self._list_rebuilt() for contents in outputs)

    @property
    def rebuilding_tasks(self) -> int:
        """About how many tasks this takes: one for all outputs of a scope, as in the old generation."""
        return sum(max((c.tasks for c in outputs), default=0) for outputs in self._list_rebuilt())

    def _list_rebuilt(self) -> list[list[GenerationContents]]:
        """Return the contents to cover: for each job that is built, and for each name that moves to another."""
        built = [job for job in self.jobs if job.action == "build"]
        names = {job.name for job in built}
        moved = [n for n in self.names if (n.after or "").partition(".")[0] not in names]
        return [
            *(list(job.rebuild.values()) for job in built),
            *([name.rebuild] for name in moved if name.rebuild),
        ]

    @property
    def breaking(self) -> dict[str, list[str]]:
        """Names that disappear although jobs of other DAGs read them, with these jobs."""
        return {name.name: name.readers for name in self.names if name.readers and not name.after}


def plan_deploy(
    before: Mapping[str, DeployedState],
    published: Mapping[str, str],
    dag: Dag,
    readers: Mapping[str, list[str]] | None = None,
) -> DeployPlan:
    """Plan the deploy of a DAG over its deployed state. `published` maps names to `job.output`."""
    generations = generation_hashes(dag)
    changed = {
        job.name
        for job in dag.jobs
        if job.name not in before or before[job.name].generation != generations[job.name]
    }
    jobs = [_plan_job(job, before.get(job.name), generations, changed) for job in dag.jobs]
    appending = _find_tables_of_ticks(dag)
    losing_rows = [job.name for job in jobs if job.action == "build" and job.name in appending]
    names = {job.name for job in dag.jobs}
    removed = [name for name, old in before.items() if name not in names and old.active]
    jobs += [PlannedJob(name, "removed", "retire", [], [], {}) for name in sorted(removed)]
    names_after = _plan_names(before, published, dag, readers or {})
    return DeployPlan(jobs, names_after, losing_rows)


def _find_tables_of_ticks(dag: Dag) -> set[str]:
    """Return the jobs that append rows for each tick of a schedule, to a table of their own."""
    ticks = {job.name for job in dag.jobs if job.source and job.source.kind == "cron"}
    buffered = {entry.job for entry in dag.publish if entry.write_mode == "buffered"}
    return {
        job.name
        for job in dag.jobs
        if job.update_strategy == "append"
        and job.name not in buffered
        and any(i.starts and i.job in ticks for i in job.inputs)
    }


def describe_lost_rows(jobs: Sequence[str]) -> str:
    """Describe which appended rows a deploy would lose, and how to keep them."""
    return (
        f"the rows that {', '.join(jobs)} appended for past ticks cannot be made again, and the new "
        "generation starts without them: publish the output with `write_mode: buffered` and a `schema`, "
        "which keeps rows and adds nullable columns, or allow losing them (--allow-breaking)"
    )


def describe_readers(readers: Mapping[str, list[str]]) -> str:
    """Describe which jobs of other DAGs read which names."""
    read = "; ".join(f"{name} is read by {', '.join(jobs)}" for name, jobs in readers.items())
    return f"{read}: change these jobs first, or allow breaking them (--allow-breaking)"


def find_affected_jobs(
    before: Mapping[str, DeployedState], published: Mapping[str, str], dag: Dag
) -> list[str]:
    """Return the deployed jobs that are removed, get a new generation or lose a published name."""
    generations = generation_hashes(dag)
    after = published_outputs(dag)
    unnamed = {
        output.partition(".")[0] for name, output in published.items() if after.get(name) != output
    }
    return [
        name
        for name, old in before.items()
        if old.active and (name in unnamed or old.generation != generations.get(name))
    ]


def _plan_job(
    job: Job, old: DeployedState | None, generations: Mapping[str, str], changed: set[str]
) -> PlannedJob:
    if old is None or not old.active:
        known = old is not None and old.generation == generations[job.name]
        action: JobAction = "adopt" if known else "start"
        return PlannedJob(job.name, "added", action, [], [], {})
    fields = list(find_differences(old.definition, job_definition(job)))
    change: JobChange = "changed" if fields else "unchanged"
    if job.name not in changed:
        action = "adopt" if fields or old.building else "keep"
        return PlannedJob(job.name, change, action, fields, [], {})
    action = "build" if old.has_contents else "start"
    because = _explain_new_generation(job, fields, changed)
    return PlannedJob(job.name, change, action, fields, because, old.contents)


def _explain_new_generation(
    job: Job, fields: list[FieldDifference], changed: set[str]
) -> list[str]:
    tuning = {f"config.{name}" for name in tuning_fields(job.operator)}
    changed_fields = [
        f.field
        for f in fields
        if f.field.split(".")[0].split("[")[0] in GENERATION_FIELDS and f.field not in tuning
    ]
    upstream = sorted({i.job for i in job.inputs if i.job in changed})
    # Neither its fields nor upstream jobs changed: the same rows are written to another dataset.
    return changed_fields + [f"upstream {name}" for name in upstream] or ["publish"]


def published_outputs(dag: Dag) -> dict[str, str]:
    """Return the output of each published name, as `job.output`. A buffered dataset can have several."""
    by_name: dict[str, list[str]] = {}
    for entry in dag.publish:
        by_name.setdefault(entry.name, []).append(f"{entry.job}.{entry.output}")
    return {name: ", ".join(sorted(outputs)) for name, outputs in by_name.items()}


def _plan_names(
    before: Mapping[str, DeployedState],
    published: Mapping[str, str],
    dag: Dag,
    readers: Mapping[str, list[str]],
) -> list[PlannedName]:
    after = published_outputs(dag)
    # A buffered dataset exists as long as it has a producer, so its name never waits for contents.
    shared = {p.name for p in dag.publish if p.write_mode == "buffered"}
    return [
        PlannedName(
            name,
            old,
            new,
            _find_contents(before, old) if old and new and name not in shared else None,
            [] if name in shared else readers.get(name, []),
        )
        for name in sorted(published.keys() | after.keys())
        if (old := published.get(name)) != (new := after.get(name))
    ]


def _find_contents(
    before: Mapping[str, DeployedState], job_output: str
) -> GenerationContents | None:
    job, _, output = job_output.partition(".")
    contents = before[job].contents.get(output) if job in before else None
    return contents if contents and contents.scopes else None


def find_differences(before: object, after: object, path: str = "") -> Iterator[FieldDifference]:
    """Yield every field that differs, with the path to the innermost value that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        old = cast(dict[str, object], before)
        new = cast(dict[str, object], after)
        for key in [*old, *(k for k in new if k not in old)]:
            key_path = f"{path}.{key}" if path else key
            yield from find_differences(old.get(key), new.get(key), key_path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _compare_lists(cast(list[object], before), cast(list[object], after), path)
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield FieldDifference(path, before, after)


def _compare_lists(
    before: list[object], after: list[object], path: str
) -> Iterator[FieldDifference]:
    nested = all(isinstance(item, dict) for item in [*before, *after])
    if len(before) != len(after) or not nested:
        if before != after:
            yield FieldDifference(path, before, after)
        return
    for n, (old, new) in enumerate(zip(before, after, strict=True)):
        yield from find_differences(old, new, f"{path}[{n}]")
