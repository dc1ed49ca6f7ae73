"""Check the strategies and the retries of a job, and build the job."""

import re
from collections.abc import Iterator

from trace_etl.dag.checks.data_checks import build_check
from trace_etl.dag.checks.sources import JobFault, build_source
from trace_etl.dag.operators import Operator
from trace_etl.dag.runtimes import Runtime
from trace_etl.dag.schema import Defaults, JobSection
from trace_etl.model.dag import Bootstrap, Job, JobInput, Retry, Udf

NATIVE_HANDLER = "bootstrap"
_HANDLER = re.compile(r"[\w$][\w$-]*([./][\w$-]+)*\.[\w$]+", re.ASCII)
"""A module, possibly in a directory of the bundle, and a function."""
_USUAL_DELAY, _USUAL_MAX_DELAY = 30, 600  # seconds


def find_strategy_faults(job: JobSection, operator: Operator | None) -> Iterator[JobFault]:
    """Yield the faults of the update strategy."""
    if operator and job.update_strategy not in operator.update_strategies:
        allowed = " or ".join(operator.update_strategies)
        rule = f"must be {allowed} for the operator {operator.name}, not {job.update_strategy}"
        yield ("update_strategy",), rule


def find_key_faults(job: JobSection) -> Iterator[JobFault]:
    """Yield the faults of the unique key."""
    if job.update_strategy == "append" and not job.unique_key:
        rule = "is required with `append`, so that a replay adds no rows; list the key columns"
        yield ("unique_key",), rule
    if job.update_strategy == "replace" and job.unique_key:
        yield ("unique_key",), "is allowed only with `update_strategy: append`; remove it"


def find_retry_faults(job: JobSection, defaults: Defaults) -> Iterator[JobFault]:
    """Yield the faults of the retry section."""
    if job.retry and job.retry.attempts and job.max_attempts:
        rule = "is allowed only without `max_attempts`, which is the same; remove one of them"
        yield ("retry", "attempts"), rule
    retry = build_retry(job, defaults)
    if retry and retry.delay and retry.max_delay and retry.delay > retry.max_delay:
        rule = f"must not be less than delay ({retry.delay} s), but is {retry.max_delay} s"
        yield ("retry", "max_delay"), rule


def find_handler_fault(handler: str | None, runtime: Runtime) -> str | None:
    """Return what is wrong with the handler of a function on a runtime."""
    if runtime.language == "native" or handler == NATIVE_HANDLER:
        return None
    form = f"`module.function`, such as rule.handler, or `{NATIVE_HANDLER}` for a native program"
    if handler is None:
        return f"is required; add {form}"
    return None if _HANDLER.fullmatch(handler) else f"must be {form}, not {handler!r}"


def build_job(
    job: JobSection,
    defaults: Defaults,
    *,
    activation: str,
    operator: str,
    runtime: str,
    inputs: tuple[JobInput, ...],
) -> Job:
    """Build a job from its section, its resolved fields and the defaults of the file."""
    bootstrap, udf = job.bootstrap, job.udf
    return Job(
        name=job.name,
        activation=activation,
        runtime=runtime,
        operator=operator,
        inputs=inputs,
        outputs=tuple(job.outputs),
        config=job.config,
        execution_strategy=job.execution_strategy,
        update_strategy=job.update_strategy,
        unique_key=tuple(job.unique_key),
        source=build_source(job.source) if job.source else None,
        max_attempts=_count_attempts(job, defaults),
        retry=build_retry(job, defaults),
        timeout_seconds=job.timeout or defaults.timeout,
        heartbeat_timeout_seconds=job.heartbeat_timeout or defaults.heartbeat_timeout,
        priority=job.priority or defaults.priority,
        max_concurrency=job.scaling.max_concurrency,
        max_queue_depth=job.max_queue_depth or defaults.max_queue_depth,
        max_queue_age=job.max_queue_age or defaults.max_queue_age,
        bootstrap=Bootstrap(bootstrap.start, bootstrap.end, bootstrap.chunk) if bootstrap else None,
        secrets=tuple(job.secrets),
        udf=Udf(udf.bundle, udf.sha256, udf.handler or NATIVE_HANDLER) if udf else None,
        partition_by=job.partition_by,
        checks=tuple(build_check(check, job) for check in job.checks),
    )


def _count_attempts(job: JobSection, defaults: Defaults) -> int:
    own = job.retry.attempts if job.retry else None
    usual = defaults.retry.attempts if defaults.retry else None
    return job.max_attempts or own or usual or defaults.max_attempts


def build_retry(job: JobSection, defaults: Defaults) -> Retry | None:
    """Return the delays of a job. If only one of `delay` and `max_delay` is given, the other has its default."""
    chosen = [section for section in (job.retry, defaults.retry) if section is not None]
    delay = next((r.delay for r in chosen if r.delay), None)
    max_delay = next((r.max_delay for r in chosen if r.max_delay), None)
    if delay is not None or max_delay is not None:
        delay = delay or min(_USUAL_DELAY, max_delay or _USUAL_DELAY)
        max_delay = max_delay or max(_USUAL_MAX_DELAY, delay)
    unreachable = next((r.unreachable for r in chosen if r.unreachable), None)
    retry = Retry(delay, max_delay, unreachable)
    return None if retry == Retry() else retry
