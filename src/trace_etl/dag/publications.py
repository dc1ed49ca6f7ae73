"""What a publication may say of the job behind it: where its rows live, and how they get there."""

from collections.abc import Iterator, Sequence

from trace_etl.dag.buffered_datasets import reserved, unfit
from trace_etl.dag.positions import Path
from trace_etl.dag.schema import JobSection, PublishSection
from trace_etl.model.dag import Column

Complaint = tuple[Path, str]
"""The field below the publication, and what is wrong with it."""


def columns_apart(columns: Sequence[Column]) -> Iterator[Complaint]:
    """Names that are used twice."""
    names = [column.name for column in columns]
    for n, name in enumerate(names):
        if name in names[:n]:
            yield ("schema", n, "name"), f"{name!r} is used twice"


def misplaced(
    entry: PublishSection, job: JobSection, mode: str, storage: str
) -> Iterator[Complaint]:
    """What does not go together: storage, write mode, columns, and what the job does."""
    if mode == "buffered":
        yield from _unbufferable(entry, storage)
    if mode != "replace":
        for n, rule in reserved(column.name for column in entry.schema_ or ()):
            yield ("schema", n, "name"), rule
    if mode == "replace" and job.update_strategy == "append":
        yield ("write_mode",), f"{job.name} appends; write `append` or `buffered`"
    if mode != "replace" and job.update_strategy == "replace":
        rule = f"{job.name} replaces what it wrote; give it `update_strategy: append`"
        yield ("write_mode",), rule
    if entry.schema_ is not None:
        columns = [column.name for column in entry.schema_]
        for missing in [key for key in job.unique_key if key not in columns]:
            yield ("schema",), f"lacks {missing!r}, which is in the unique_key of {job.name}"


def _unbufferable(entry: PublishSection, storage: str) -> Iterator[Complaint]:
    if storage != "postgres":
        yield ("storage",), "a buffered dataset lives in `postgres`"
    if entry.schema_ is None:
        yield ("schema",), "a buffered dataset needs its columns"
    for n, field, rule in unfit((c.name, c.type) for c in entry.schema_ or ()):
        yield ("schema", n, field), rule
