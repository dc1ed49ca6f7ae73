"""Decide whether the reported results of data checks allow a commit."""

from collections.abc import Collection, Iterator
from typing import NamedTuple
from uuid import UUID

from trace_etl.model.errors import Fault


class DefinedCheck(NamedTuple):
    """A check of an output in the definition of the task's job."""

    dataset_version: UUID
    name: str
    on_failure: str


class ReportedCheck(NamedTuple):
    """A result that a worker reported."""

    dataset_version: UUID
    partition_key: str
    name: str
    passed: bool


def find_result_faults(
    defined: Collection[DefinedCheck],
    reported: Collection[ReportedCheck],
    published: Collection[tuple[UUID, str]],
) -> Iterator[Fault]:
    """Yield what is wrong with the results of an attempt that commits these (version, key) partitions.

    A result that is missing refuses the commit: a worker that does not run the checks must not
    publish data.
    """
    consequences = {(check.dataset_version, check.name): check.on_failure for check in defined}
    given = {(result.dataset_version, result.partition_key, result.name) for result in reported}
    if len(given) < len(reported):
        yield Fault("checks", "has two results of one check for one partition; report one")
    for n, result in enumerate(reported):
        consequence = consequences.get((result.dataset_version, result.name))
        if consequence is None:
            yield Fault(f"checks.{n}.name", f"the job has no check {result.name!r} of this output")
        elif consequence == "block" and not result.passed and published:
            rule = f"{result.name} blocks the commit; report the attempt as Failed"
            yield Fault(f"checks.{n}.passed", rule)
    for version, key in published:
        for check in defined:
            if check.dataset_version == version and (version, key, check.name) not in given:
                rule = f"has no result of the check {check.name!r} for partition {key}"
                yield Fault("checks", f"{rule}; the worker must run it")
