"""Buffered datasets: the columns and the key that all their producers must share."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trace_etl.dag.column_types import BUFFERED, MAX_TABLE_NAME_BYTES, RESERVED, buffered_form
from trace_etl.dag.operators import OPERATORS
from trace_etl.model.dag import Column, Dag, Publication
from trace_etl.model.digests import digest
from trace_etl.model.roles import ROLES


@dataclass(frozen=True)
class BufferedDataset:
    """A producer's declaration of a buffered dataset. The order of the columns does not matter."""

    name: str
    columns: tuple[Column, ...]
    unique_key: tuple[str, ...]
    kept_generation: str | None = None
    """The generation of an earlier declaration, to which this one only adds nullable columns."""

    @property
    def generation(self) -> str:
        return self.kept_generation or self.declared_generation

    @property
    def declared_generation(self) -> str:
        columns = sorted((column.shape for column in self.columns), key=lambda c: c["name"])
        return digest([columns, sorted(self.unique_key)])


SHIPPED: Mapping[str, BufferedDataset] = {
    "alert_events": BufferedDataset(
        "alert_events",
        (
            Column(
                "dedupe_key", "string", False, "Identifies the alert. A repeated key is one row."
            ),
            Column("severity", "string", True, "For example info, warning or critical."),
            Column("payload", "json", True, "What the alert is about."),
            Column("created_at", "timestamp", True, "When the alert was raised."),
        ),
        ("dedupe_key",),
    )
}
"""Datasets that the platform declares. Any DAG can publish to them by name, without a `schema`."""


def find_shipped_faults(
    name: str, mode: str, columns: Collection[Column], unique_key: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the fields in which a publication differs from the dataset that the platform declares."""
    shipped = SHIPPED.get(name)
    if shipped is None:
        return
    rule = f"{name!r} is a dataset that the platform declares"
    if mode != "buffered":
        yield "name", f"{rule}; set `write_mode: buffered`, or choose another name"
        return
    declared = BufferedDataset(name, tuple(columns) or shipped.columns, tuple(unique_key))
    for field, how in find_producer_conflicts(declared, shipped):
        fix = (
            "set `unique_key: [dedupe_key]` in the job"
            if field == "unique_key"
            else "remove `schema`"
        )
        yield "schema" if columns else "name", f"{rule}, and {field} is {how}; {fix}"


def make_buffered_dataset(
    name: str, columns: list[dict[str, Any]], unique_key: list[str]
) -> BufferedDataset:
    """Build the declaration from its stored form."""
    return BufferedDataset(name, tuple(Column(**column) for column in columns), tuple(unique_key))


def find_buffered_outputs(dag: Dag) -> dict[tuple[str, str], BufferedDataset]:
    """Return the buffered datasets that a DAG publishes, by job and output."""
    keys = {job.name: job.unique_key for job in dag.jobs}
    return {
        (entry.job, entry.output): BufferedDataset(
            entry.name, entry.columns or (), keys[entry.job], entry.generation
        )
        for entry in dag.publish
        if entry.write_mode == "buffered" and entry.job in keys
    }


def find_producer_conflicts(
    dataset: BufferedDataset, other: BufferedDataset
) -> Iterator[tuple[str, str]]:
    """Yield each field in which two producers differ, and how. Producers without a difference can share a name."""
    if set(dataset.unique_key) != set(other.unique_key):
        yield "unique_key", f"{_describe_key(dataset)} here, {_describe_key(other)} there"
    columns, other_columns = _index_columns(dataset), _index_columns(other)
    for name in [*columns, *(n for n in other_columns if n not in columns)]:
        here, there = columns.get(name), other_columns.get(name)
        if here != there:
            yield (
                f"schema.{name}",
                f"{_describe_column(here)} here, {_describe_column(there)} there",
            )


def is_addition(dataset: BufferedDataset, other: BufferedDataset, field: str) -> bool:
    """Return whether a difference is a nullable column that only the first declaration has."""
    name = field.removeprefix("schema.")
    here, there = _index_columns(dataset).get(name), _index_columns(other).get(name)
    return field != name and there is None and here is not None and here.nullable


def find_conflicting_publications(dag: Dag) -> Iterator[tuple[int, str]]:
    """Yield the publications of one file that share a buffered name but differ: index and error text."""
    declared = find_buffered_outputs(dag)
    first: dict[str, tuple[BufferedDataset, Publication]] = {}
    for n, entry in enumerate(dag.publish):
        dataset = declared.get((entry.job, entry.output))
        if dataset is not None:
            other, other_entry = first.setdefault(entry.name, (dataset, entry))
            conflicts = [
                *find_producer_conflicts(dataset, other),
                *find_role_conflicts(entry.read_roles, other_entry.read_roles),
            ]
            for field, how in conflicts:
                rule = f"differs from another producer of {entry.name!r} in {field}: {how}"
                yield n, f"{rule}; make them equal"


def find_unbuffered_outputs(dag: Dag) -> Iterator[tuple[int, int, str]]:
    """Yield outputs that must be buffered datasets but are not: index of job and output, error text."""
    buffered = find_buffered_outputs(dag)
    for n, job in enumerate(dag.jobs):
        operator = OPERATORS.get(job.operator)
        if operator is None or not operator.needs_buffered_outputs:
            continue
        for m, output in enumerate(job.outputs):
            dataset = buffered.get((job.name, output))
            if dataset is None or dataset.name != (operator.published_as or dataset.name):
                name = f" as {operator.published_as!r}" if operator.published_as else ""
                rule = f"must be published{name} with `write_mode: buffered`"
                yield n, m, f"{output!r} {rule} (operator {job.operator}); add it to `publish`"


def find_role_conflicts(
    roles: Collection[str] | None, other_roles: Collection[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield `read_roles` if two producers of one name let different roles read it."""
    if set(roles or ROLES) != set(other_roles or ROLES):
        here, there = (", ".join(found or ("every role",)) for found in (roles, other_roles))
        yield "read_roles", f"{here} here, {there} there"


def find_unsupported_columns(columns: Iterable[tuple[str, str]]) -> Iterator[tuple[int, str, str]]:
    """Yield the columns that a buffered dataset cannot have: index, field and error text."""
    for n, (name, kind) in enumerate(columns):
        if (size := len(name.encode())) > MAX_TABLE_NAME_BYTES:
            rule = f"has {size} bytes, but Postgres allows {MAX_TABLE_NAME_BYTES}"
            yield n, "name", f"{rule}; choose a shorter name"
        if buffered_form(kind) is None:
            rule = f"is {kind}, but a buffered dataset supports only {', '.join(BUFFERED)}"
            yield n, "type", f"{rule} and arrays of these; choose one of them"
        if name == "org_id" and kind != "string":
            yield n, "type", f"must be string, not {kind}: the platform fills in org_id"


def find_reserved_columns(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the columns whose names are reserved. Readers recognise a buffered dataset by these columns."""
    for n, name in enumerate(names):
        if name in RESERVED:
            yield n, f"{name!r} is reserved for the platform; choose another name"


def _describe_key(dataset: BufferedDataset) -> str:
    return f"[{', '.join(dataset.unique_key)}]"


def _index_columns(dataset: BufferedDataset) -> Mapping[str, Column]:
    return {column.name: column for column in dataset.columns}


def _describe_column(column: Column | None) -> str:
    if column is None:
        return "missing"
    return column.type if column.nullable else f"{column.type}, not nullable"
