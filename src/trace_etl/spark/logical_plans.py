"""Read Spark's logical plans. Only a classic session shows them: Spark Connect does not."""

from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import DataFrame


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    return (sequence.apply(n) for n in range(sequence.size()))


def class_name(value: Any) -> str:
    """Return the class of an object of the JVM, without its package."""
    return cast("str", value.getClass().getSimpleName())


def find_needed_columns(frame: DataFrame) -> dict[str, frozenset[str]]:
    """Return the columns that a frame needs of each Python data source, by the name of the source.

    A source is missing if that is not certain: then all its columns are needed.
    """
    if not hasattr(frame, "_jdf"):
        return {}
    plan = cast("Any", frame)._jdf.queryExecution().optimizedPlan()
    needed: dict[str, frozenset[str]] = {}
    unknown: set[str] = set()
    for leaf, ids in _walk(plan, None):
        name = str(leaf.relation().table().name())
        if ids is None:
            unknown.add(name)
            continue
        names = {str(column.name()) for column in items(leaf.output()) if _read_id(column) in ids}
        needed[name] = needed.get(name, frozenset()) | names
    return {name: names for name, names in needed.items() if name not in unknown}


def _walk(plan: Any, ids: frozenset[int] | None) -> Iterator[tuple[Any, frozenset[int] | None]]:
    """Yield each scan of a data source, and the ids of the columns that the nodes above it use.

    The ids are known below a projection or an aggregation, which name the columns that they use. Every
    other node may pass on all columns.
    """
    kind = class_name(plan)
    if kind == "DataSourceV2ScanRelation":
        yield plan, ids
        return
    if kind in ("Project", "Aggregate"):
        ids = _list_references(plan)
    elif kind == "Filter" and ids is not None:
        ids |= _list_references(plan)
    elif kind != "Repartition":  # a Repartition uses no column
        ids = None
    for child in items(plan.children()):
        yield from _walk(child, ids)
    for subquery in items(plan.subqueries()):
        yield from _walk(subquery, None)


def _list_references(plan: Any) -> frozenset[int]:
    return frozenset(_read_id(column) for column in items(plan.references().toSeq()))


def _read_id(column: Any) -> int:
    return int(column.exprId().id())
