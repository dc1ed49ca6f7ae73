"""Operators from other packages, which declare them as entry points of the group `trace_etl.operators`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points

from trace_etl.dag.operator import Operator

GROUP = "trace_etl.operators"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class PackagedOperators:
    """The operators of installed packages, and those that cannot be used."""

    operators: Mapping[str, Operator] = field(default_factory=dict[str, Operator])
    faults: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why an operator cannot be used, by the name of its entry point."""


def load_packaged(shipped: Iterable[str], found: Iterable[EntryPoint] = ()) -> PackagedOperators:
    """Load the declarations of installed packages. A faulty one never stops the platform.

    It cannot take the name of an operator of Trace.
    """
    operators: dict[str, Operator] = {}
    faults: dict[str, str] = {}
    taken = {*shipped}
    for point in found or entry_points(group=GROUP):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "?"
        try:
            operators[point.name] = _load(point, package, taken)
            taken.add(point.name)
        except Exception as error:  # code of another package may raise anything
            faults[point.name] = f"{package}: {error or type(error).__name__}"
    return PackagedOperators(operators, faults)


def _load(point: EntryPoint, package: str, taken: set[str]) -> Operator:
    declared: object = point.load()
    if not isinstance(declared, Operator):
        raise TypeError(f"{point.value} is not an Operator of trace_etl.dag.operator; declare one")
    if declared.name != point.name or not _NAME.fullmatch(declared.name):
        rule = "must have the name of its entry point: small letters, digits and _"
        raise ValueError(f"the operator {declared.name!r} {rule}")
    if declared.name in taken:
        raise ValueError(f"another operator is named {declared.name!r} already; rename this one")
    if declared.launchers != ("spark",) or not declared.module:
        raise ValueError('the operator must have the launchers ("spark",) and a `module`')
    return replace(declared, package=package)
