"""Decide which inputs start a job and which ones it reads, and find combinations that cannot run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trace_etl.dag.operators import OPERATORS, Operator, writes_table
from trace_etl.dag.schema import JobSection
from trace_etl.model.dag import JobInput

Fault = tuple[tuple[str | int, ...], str]
"""The path of a field below its job, and an error text."""


@dataclass(frozen=True)
class Upstream:
    """What an input of this file comes from."""

    name: str
    source: str | None
    """The kind of a source that emits events: `manual`, `cron` or `webhook`."""
    forwards: bool
    """Whether it emits block ranges and writes no rows."""
    is_table: bool
    """Whether its rows are in a table of Postgres data, so that it has no partitions."""
    has_function: bool
    """Whether a function emits its events: they have the scopes that the function chooses."""

    @property
    def has_rows(self) -> bool:
        return self.source is None and not self.forwards


def describe_upstream(section: JobSection | None) -> Upstream | None:
    """Describe the job of an input; None if the file does not define it."""
    if section is None:
        return None
    operator = OPERATORS.get(section.operator or "")
    kind = section.source.kind if section.source else None
    return Upstream(
        section.name,
        None if kind == "always_on" else kind,
        operator is not None and operator.forwards_scopes,
        writes_table(section.operator or "", section.update_strategy),
        operator is not None and operator.is_source,
    )


def resolve_triggers(
    job: JobSection,
    operator: Operator | None,
    inputs: Sequence[JobInput],
    jobs: Mapping[str, JobSection],
) -> tuple[JobInput, ...]:
    """Set which inputs start the job and which ones it reads.

    An input from a source starts the job and has no rows. The job then runs when the source says, so its other
    inputs do not start it, unless the file says so.
    """
    upstream = [describe_upstream(jobs.get(item.job or "")) for item in inputs]
    has_source = any(up is not None and up.source is not None for up in upstream)
    can_read_ranges = operator is not None and operator.repartitions
    resolved: list[JobInput] = []
    for item, up in zip(inputs, upstream, strict=True):
        is_lookup = job.partition_by is not None and item.time is None
        reads = item.trigger != "only"
        starts = item.trigger != "never"
        if up is not None and not up.has_rows:
            reads, starts = can_read_ranges and reads, True
        elif item.trigger is None and (has_source or is_lookup):
            starts = False
        resolved.append(replace(item, reads=reads, starts=starts))
    return tuple(resolved)


def find_trigger_faults(
    job: JobSection,
    operator: Operator | None,
    inputs: Sequence[JobInput],
    jobs: Mapping[str, JobSection],
) -> Iterator[Fault]:
    """Yield what cannot run: triggers without rows, strategies without their scope."""
    upstream = [describe_upstream(jobs.get(item.job or "")) for item in inputs]
    for n, (item, up) in enumerate(zip(inputs, upstream, strict=True)):
        yield from _find_input_faults(n, job, item, up)
    if inputs and not any(item.starts for item in inputs):
        yield ("inputs",), "no input starts the job; remove `trigger: never` from one of them"
    sources = {
        up.source: up.name
        for up in upstream
        if up is not None and up.source and not up.has_function
    }
    if operator is not None:
        yield from _find_operator_faults(job, operator, sources)
    if job.execution_strategy == "PerUpdate" and "cron" in sources:
        rule = f"must not be PerUpdate: a tick of {sources['cron']} has no cursor"
        yield ("execution_strategy",), f"{rule}; use PerPartition or WholeDataset"
    if job.partition_by is not None:
        yield from _find_time_faults(job, operator, inputs, upstream)


def _find_input_faults(
    n: int, job: JobSection, item: JobInput, up: Upstream | None
) -> Iterator[Fault]:
    if up is not None and not up.has_rows and item.trigger in ("always", "never"):
        rule = f"{up.name} only emits events and has no rows, so it can only start the job"
        yield ("inputs", n, "trigger"), f"{rule}; remove `trigger`"
    if not item.reads and item.where:
        yield ("inputs", n, "where"), "is allowed only on an input whose rows are read; remove it"
    if item.time is not None and job.partition_by is None:
        yield ("inputs", n, "time"), "is allowed only with `partition_by`; add it, or remove `time`"
    if item.time is not None and not item.reads:
        yield ("inputs", n, "time"), "is allowed only on an input whose rows are read; remove it"


def _find_operator_faults(
    job: JobSection, operator: Operator, sources: Mapping[str, str]
) -> Iterator[Fault]:
    if operator.needs_ranges and "cron" in sources:
        rule = f"a tick of {sources['cron']} has no block range, which {operator.name} needs"
        yield ("inputs",), f"{rule}; use a manual or webhook source"
    if job.execution_strategy != "WholeDataset":
        return
    if operator.needs_ranges or operator.never_ends:
        rule = f"must not be WholeDataset for the operator {operator.name}, which works on blocks"
        yield ("execution_strategy",), f"{rule}; use PerPartition"
    elif job.update_strategy != "replace":
        rule = "must be `replace` with `execution_strategy: WholeDataset`, which replaces all rows"
        yield ("update_strategy",), rule


def _find_time_faults(
    job: JobSection,
    operator: Operator | None,
    inputs: Sequence[JobInput],
    upstream: Sequence[Upstream | None],
) -> Iterator[Fault]:
    at = ("partition_by",)
    if operator is not None and (operator.needs_ranges or operator.never_ends):
        yield (
            at,
            f"is not supported by the operator {operator.name}, which works on blocks; remove it",
        )
    if job.execution_strategy != "PerPartition":
        yield at, f"needs `execution_strategy: PerPartition`, not {job.execution_strategy}"
    if job.update_strategy != "replace":
        yield at, f"needs `update_strategy: replace`, not {job.update_strategy}"
    if not any(item.time for item in inputs):
        rule = "needs an input with `time`, the column with the time of a row"
        yield at, f"{rule}, such as `{{from: {{job: …}}, time: timestamp}}`"
    for n, (item, up) in enumerate(zip(inputs, upstream, strict=True)):
        if not item.reads:
            rule = (
                "a job with time partitions is started by its inputs with `time`, not by triggers"
            )
            yield ("inputs", n), f"{rule}; remove this input, or remove `partition_by`"
        elif item.time is None and item.starts:
            rule = "a change of an input without `time` would rebuild every partition"
            yield ("inputs", n, "trigger"), f"{rule}; set `time`, or `trigger: never`"
        elif item.time is not None and up is not None and up.is_table:
            rule = f"the rows of {up.name} are in a table without partitions"
            yield ("inputs", n, "time"), f"{rule}; read a job that writes files"
