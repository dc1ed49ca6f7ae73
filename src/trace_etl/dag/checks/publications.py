"""Check that a publication's storage, write mode and columns fit its job."""

from collections.abc import Iterator, Sequence

from trace_etl.dag.buffered_datasets import (
    SHIPPED,
    find_reserved_columns,
    find_shipped_faults,
    find_unsupported_columns,
)
from trace_etl.dag.operators import OPERATORS
from trace_etl.dag.positions import FieldPath
from trace_etl.dag.schema import JobSection, PublishSection
from trace_etl.model.dag import Column

CHANGES = "trace_changes"
"""The name under which queries read the delivery log."""
PublicationFault = tuple[FieldPath, str]
"""A field of the publication, and an error text."""


def find_duplicate_columns(columns: Sequence[Column]) -> Iterator[PublicationFault]:
    """Yield the columns whose names are used twice. Queries do not distinguish upper and lower case."""
    names = [column.name.lower() for column in columns]
    for n, column in enumerate(columns):
        if names[n] in names[:n]:
            yield ("schema", n, "name"), f"{column.name!r} is used twice; choose another name"


def find_publication_faults(
    entry: PublishSection, job: JobSection, mode: str, storage: str
) -> Iterator[PublicationFault]:
    """Yield conflicts between storage, write mode, columns and the job's update strategy."""
    if entry.name == CHANGES:
        yield ("name",), f"{CHANGES!r} is reserved for the delivery log; choose another name"
    columns = [Column(c.name, c.type, c.nullable) for c in entry.schema_ or ()]
    for field, rule in find_shipped_faults(entry.name, mode, columns, job.unique_key):
        yield (field,), rule
    if mode == "buffered":
        yield from _find_buffering_faults(entry, storage)
    if mode != "replace":
        for n, rule in find_reserved_columns(column.name for column in entry.schema_ or ()):
            yield ("schema", n, "name"), rule
    if mode == "replace" and job.update_strategy == "append":
        rule = f"is replace, but the job {job.name} has `update_strategy: append`"
        yield ("write_mode",), f"{rule}; use `append` or `buffered`"
    if mode != "replace" and job.update_strategy == "replace":
        rule = f"is {mode}, but the job {job.name} has `update_strategy: replace`"
        yield ("write_mode",), f"{rule}; set `update_strategy: append` in the job"
    if entry.schema_ is not None:
        columns = [column.name for column in entry.schema_]
        for missing in [key for key in job.unique_key if key not in columns]:
            yield (
                ("schema",),
                f"has no column {missing!r}, which is in the unique_key of {job.name}; add it",
            )


def find_hot_part_fault(job: JobSection, mode: str) -> str | None:
    """Return why a job's output cannot be the hot part of a publication; None if it can."""
    operator = OPERATORS.get(job.operator or "")
    if operator is not None and not operator.writes_tables:
        followers = " or ".join(op.name for op in OPERATORS.values() if op.writes_tables)
        return f"must be an output of a {followers}, not of {job.operator}"
    if mode != "replace":
        return f"is only for datasets with `write_mode: replace`, not {mode}; remove it"
    return None


def _find_buffering_faults(entry: PublishSection, storage: str) -> Iterator[PublicationFault]:
    if storage != "postgres":
        yield ("storage",), f"must be postgres for a buffered dataset, not {storage}"
    if entry.schema_ is None and entry.name not in SHIPPED:
        yield ("schema",), "is required for a buffered dataset; list its columns"
    for n, field, rule in find_unsupported_columns((c.name, c.type) for c in entry.schema_ or ()):
        yield ("schema", n, field), rule
