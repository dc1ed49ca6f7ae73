"""Check the activation, the source and the bootstrap of a job."""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError

from trace_etl.dag.operators import OPERATORS
from trace_etl.dag.positions import FieldPath
from trace_etl.dag.schema import BootstrapSection, JobSection, SourceSection
from trace_etl.model.dag import Source
from trace_etl.model.scope import MAX_BLOCK

JobFault = tuple[FieldPath, str]
"""A field of the job, and an error text."""
_MAX_BOOTSTRAP_REQUESTS = 100_000
_FIELDS_OF_KIND = {
    "cron": ("schedule", "timezone", "missed", "most_missed"),
    "webhook": ("secret", "max_bytes", "scope"),
}
_EVENTS_ONLY = [("source", kind) for kind in ("manual", "cron", "webhook")]
_OPTIONS = ("timezone", "missed", "most_missed", "secret", "max_bytes")


def find_activation_faults(job: JobSection, activation: str) -> Iterator[JobFault]:
    """Yield the faults of a job's activation, source and bootstrap."""
    if activation == "source" and job.source is None:
        yield ("source",), "is required for a source job; add one, such as `{kind: manual}`"
    if activation == "source" and job.inputs:
        yield ("inputs",), "must be empty for a source job; remove them"
    if activation == "reactive" and job.source is not None:
        rule = "is allowed only with `activation: source`; remove it, or change the activation"
        yield ("source",), rule
    if activation == "reactive" and not job.inputs:
        yield ("inputs",), "must have at least one input for a reactive job; add one"
    if job.source:
        for path, rule in _find_source_faults(job.source):
            yield ("source", *path), rule
    operator = OPERATORS.get(job.operator or "")
    if operator is not None and operator.is_source:
        yield from _find_function_faults(job, activation, operator.name)
    elif job.operator and job.source and (activation, job.source.kind) in _EVENTS_ONLY:
        rule = f"a {job.source.kind} source only emits events: it runs `udf_source`, or nothing"
        yield ("operator",), f"{rule}; remove it, and add a job that reads this source"
    if job.bootstrap:
        for path, rule in _find_bootstrap_faults(job, job.bootstrap):
            yield ("bootstrap", *path), rule


def _find_function_faults(job: JobSection, activation: str, operator: str) -> Iterator[JobFault]:
    if activation != "source" or (job.source is not None and job.source.kind == "always_on"):
        rule = f"{operator} runs for a source of the kind manual, cron or webhook"
        yield ("operator",), f"{rule}; add this source, or use the operator udf"
    if job.bootstrap is not None:
        rule = f"is not allowed with the operator {operator}, whose function emits the events"
        yield ("bootstrap",), f"{rule}; remove it, and trigger the source"


def _find_source_faults(source: SourceSection) -> Iterator[JobFault]:
    for kind, names in _FIELDS_OF_KIND.items():
        for name in names:
            if kind != source.kind and getattr(source, name) is not None:
                rule = f"is allowed only with `kind: {kind}`, not with `kind: {source.kind}`"
                yield (name,), f"{rule}; remove it"
    if source.kind == "webhook" and source.secret is None:
        rule = "is required for a webhook; name the secret that signs its deliveries"
        yield ("secret",), rule
    if source.kind == "cron" and (rule := _find_schedule_fault(source.schedule)):
        yield ("schedule",), rule
    if source.timezone is not None and source.timezone not in available_timezones():
        rule = f"unknown time zone {source.timezone!r}; use a name such as Europe/Berlin"
        yield ("timezone",), rule
    if source.most_missed is not None and source.missed != "all":
        yield ("most_missed",), "is allowed only with `missed: all`; remove it"
    if source.scope is not None:
        scope_fields = source.scope.model_dump(exclude_none=True).keys()
        if scope_fields not in ({"start", "end"}, {"cursor"}):
            yield ("scope",), "must have either `start` and `end`, or only `cursor`"


def _find_schedule_fault(schedule: str | None) -> str | None:
    example = "five fields, such as '*/5 * * * *' for every five minutes"
    if schedule is None:
        return f"is required but missing; write {example}"
    try:
        CronSim(schedule, datetime.now(UTC))
    except CronSimError as error:
        return f"is not a valid cron expression ({error}); write {example}"
    return None


def _find_bootstrap_faults(job: JobSection, bootstrap: BootstrapSection) -> Iterator[JobFault]:
    if job.source is None or job.source.kind != "manual":
        yield (), "is allowed only with a `manual` source; remove it, or change the source"
    if bootstrap.end < bootstrap.start:
        yield ("end",), f"must not be less than start ({bootstrap.start}), but is {bootstrap.end}"
    requests = (bootstrap.end - bootstrap.start) // (bootstrap.chunk or MAX_BLOCK)
    if requests >= _MAX_BOOTSTRAP_REQUESTS:
        rule = f"splits the range into more than {_MAX_BOOTSTRAP_REQUESTS:,} requests"
        yield ("chunk",), f"{rule}; use a larger chunk"


def build_source(source: SourceSection) -> Source:
    """Build the source of a job without faults."""
    options = {name: value for name in _OPTIONS if (value := getattr(source, name)) is not None}
    if source.scope is not None:
        options["scope"] = source.scope.model_dump(exclude_none=True)
    return Source(source.kind, source.schedule, options)
