"""Decide how the declaration of a buffered dataset may change while it has rows."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from trace_etl.dag.buffered_datasets import BufferedDataset
from trace_etl.model.dag import Column


@dataclass(frozen=True)
class ColumnChange:
    """The difference between a declaration and the dataset as it is."""

    added: list[Column] = field(default_factory=list[Column])
    problems: list[tuple[str | None, str]] = field(default_factory=list[tuple[str | None, str]])
    """Changes that existing rows do not allow: the column, or None for the key, and the reason."""


def find_column_changes(
    declared: BufferedDataset, stored: BufferedDataset, published: Collection[str]
) -> ColumnChange:
    """Compare a declaration with the stored columns. `published` are the names declared until now.

    Only nullable columns can be added. Everything else would change rows that exist.
    """
    known = {column.name: column for column in stored.columns}
    added = [column for column in declared.columns if column.name not in known]
    return ColumnChange(added, list(_find_problems(declared, stored, published)))


def _find_problems(
    declared: BufferedDataset, stored: BufferedDataset, published: Collection[str]
) -> Iterator[tuple[str | None, str]]:
    if set(declared.unique_key) != set(stored.unique_key):
        keys = [", ".join(key) for key in (stored.unique_key, declared.unique_key)]
        yield None, f"the unique_key changes from [{keys[0]}] to [{keys[1]}]"
    known = {column.name: column for column in stored.columns}
    for column in declared.columns:
        old = known.get(column.name)
        if old is None and not column.nullable:
            yield column.name, "is new and not nullable, but existing rows have no value"
        elif old is not None and old.type != column.type:
            yield column.name, f"changes its type from {old.type} to {column.type}"
        elif old is not None and old.nullable != column.nullable:
            how = "nullable" if column.nullable else "not nullable"
            yield column.name, f"becomes {how}"
    names = {column.name for column in declared.columns}
    for name in sorted(set(published) - names):
        yield name, "is removed"
