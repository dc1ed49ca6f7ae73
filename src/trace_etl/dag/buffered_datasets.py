"""Buffered datasets: what their producers must agree on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trace_etl.dag.column_types import BUFFERED
from trace_etl.model.dag import Column, Dag
from trace_etl.model.digests import digest

RESERVED = ("_cursor", "_published")
"""Columns that the platform keeps beside the declared ones."""


@dataclass(frozen=True)
class Buffer:
    """What a producer says of a buffered dataset; the order of columns does not matter."""

    name: str
    columns: tuple[Column, ...]
    unique_key: tuple[str, ...]

    @property
    def generation(self) -> str:
        columns = sorted((asdict(column) for column in self.columns), key=lambda c: c["name"])
        return digest([columns, sorted(self.unique_key)])


def buffer(name: str, columns: list[dict[str, Any]], unique_key: list[str]) -> Buffer:
    """The same, as it was stored."""
    return Buffer(name, tuple(Column(**column) for column in columns), tuple(unique_key))


def buffers(dag: Dag) -> dict[tuple[str, str], Buffer]:
    """The outputs of a DAG that are published as buffered, by job and output."""
    keys = {job.name: job.unique_key for job in dag.jobs}
    return {
        (entry.job, entry.output): Buffer(entry.name, entry.columns or (), keys[entry.job])
        for entry in dag.publish
        if entry.write_mode == "buffered" and entry.job in keys
    }


def disagreements(mine: Buffer, theirs: Buffer) -> Iterator[tuple[str, str]]:
    """Every field in which two producers differ, and how; nothing: they can share the name."""
    if set(mine.unique_key) != set(theirs.unique_key):
        yield "unique_key", f"{_listed(mine)} here, {_listed(theirs)} there"
    ours, others = _by_name(mine), _by_name(theirs)
    for name in [*ours, *(n for n in others if n not in ours)]:
        here, there = ours.get(name), others.get(name)
        if here != there:
            yield f"schema.{name}", f"{_told(here)} here, {_told(there)} there"


def disagreeing(dag: Dag) -> Iterator[tuple[int, str]]:
    """The publications of one file that share a buffered name and do not agree."""
    said = buffers(dag)
    first: dict[str, Buffer] = {}
    for n, entry in enumerate(dag.publish):
        mine = said.get((entry.job, entry.output))
        if mine is not None:
            for field, how in disagreements(mine, first.setdefault(entry.name, mine)):
                yield n, f"the producers of {entry.name!r} differ in {field}: {how}"


def unfit(columns: Iterable[tuple[str, str]]) -> Iterator[tuple[int, str, str]]:
    """The columns, by name and type, that a buffered dataset cannot have; which field, and why."""
    for n, (name, kind) in enumerate(columns):
        if kind not in BUFFERED:
            rule = f"a buffered dataset holds {', '.join(BUFFERED)}; write {kind} as string"
            yield n, "type", rule
        if name == "org_id" and kind != "string":
            yield n, "type", "org_id is filled in by the platform; it is a string"


def reserved(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The columns that no table of rows can have: by them its readers know a buffered one."""
    for n, name in enumerate(names):
        if name in RESERVED:
            yield n, f"{name!r} is kept by the platform"


def _listed(one: Buffer) -> str:
    return f"[{', '.join(one.unique_key)}]"


def _by_name(one: Buffer) -> Mapping[str, Column]:
    return {column.name: column for column in one.columns}


def _told(column: Column | None) -> str:
    if column is None:
        return "missing"
    return column.type if column.nullable else f"{column.type}, not nullable"
