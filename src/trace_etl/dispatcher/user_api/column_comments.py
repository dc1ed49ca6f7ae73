"""Describe the columns of a dataset: what was written, with the comments of operator and DAG file."""

from collections.abc import Sequence
from typing import Any

from trace_etl.api.user.data.datasets import DatasetColumn
from trace_etl.dag.column_types import BY_SPARK
from trace_etl.dag.operators import OPERATORS
from trace_etl.state.catalog.datasets import DatasetDescription


def describe_columns(
    known: Sequence[dict[str, Any]], description: DatasetDescription
) -> list[DatasetColumn]:
    """Return the known columns; without any, those that the operator or the DAG file declares.

    A comment in the DAG file is preferred to the operator's.
    """
    operator = OPERATORS.get(description.operator or "")
    output = description.output_name or ""
    fixed = operator.columns(output) if operator else ()
    optional = operator.optional_columns(output) if operator else ()
    declared = description.columns or []
    comments = {
        **(operator.comments if operator else {}),
        **{column.name: column.comment for column in (*fixed, *optional)},
        **{c["name"]: c["comment"] for c in declared if c.get("comment")},
    }
    made = [{"name": c.name, "type": BY_SPARK[c.type].spark} for c in fixed]
    shapes = list(known) or made or declared
    return [
        DatasetColumn(
            name=shape["name"],
            type=shape["type"],
            comment=comments.get(shape["name"]),
        )
        for shape in shapes
    ]
