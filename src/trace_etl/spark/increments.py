"""Add new input partitions to the previous result of a job over a whole dataset.

The rows of `SELECT keys, sum(x), count(*), min(y), max(z) FROM input WHERE … GROUP BY keys` over two sets of
partitions are the rows over each set, grouped once more by the keys: counts and sums are added, minima and
maxima compared. So if every partition that the previous result was made from is still an input, only the
others must be read. Spark's analysed plan decides whether a SELECT has this form. Everything else, and a
reorganisation, which replaces a partition, is computed from all rows.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from trace_etl.api.task.payload import InputPartition, TaskInput, TaskPayload
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.logical_plans import class_name, items

MAX_PARTITIONS = 10_000
"""A result of more input partitions is always computed whole: its marker would list all of them."""
# Their equality and order are the same in Spark and in files. Floats have several zeros and NaNs, and the sum of
# floats depends on the order.
_EXACT = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
_ROW_WISE = ("Project", "Filter", "SubqueryAlias")
_MERGED_BY = {"Count": F.sum, "Sum": F.sum, "Min": F.min, "Max": F.max}


@dataclass(frozen=True)
class Merge:
    """How the rows of two results become one: the keys, and the function of each other column."""

    keys: tuple[str, ...]
    functions: dict[str, str]
    """By column: the name of Spark's aggregate function."""

    def apply(self, first: DataFrame, second: DataFrame) -> DataFrame:
        """Merge two results of the same SELECT."""
        kinds = {field.name: field.dataType for field in second.schema.fields}
        merged = [
            _MERGED_BY[function](_quote_column(name)).cast(kinds[name]).alias(name)
            for name, function in self.functions.items()
        ]
        rows = first.select(*map(_quote_column, kinds)).unionAll(second)
        grouped = rows.groupBy(*map(_quote_column, self.keys)).agg(*merged)
        return grouped.select(*map(_quote_column, kinds))


def list_digests(task_input: TaskInput) -> dict[str, InputPartition]:
    """Return the partitions of an input by digest. Each attempt writes to a prefix of its own."""
    return {_hash_partition(partition): partition for partition in task_input.partitions}


def _hash_partition(partition: InputPartition) -> str:
    return hashlib.sha256(partition.storage_ref.ref().url.encode()).hexdigest()[:32]


def can_add(task: TaskPayload) -> bool:
    """Whether a task is a refresh of a whole dataset from one input with partitions."""
    if not task.is_refresh or task.partition_by is not None or len(task.inputs) != 1:
        return False
    return 0 < len(task.inputs[0].partitions) <= MAX_PARTITIONS


def find_merge(frame: DataFrame) -> Merge | None:
    """Return how results of the frame's SELECT are merged; None if that is not certain."""
    if not hasattr(frame, "_jdf"):  # Spark Connect does not show its plan
        return None
    plan = cast("Any", frame)._jdf.queryExecution().analyzed()
    patterns = _list_patterns(frame)
    if not plan.deterministic() or any(plan.containsPattern(pattern) for pattern in patterns):
        return None
    if class_name(plan) != "Aggregate" or not _is_row_wise(plan.child()):
        return None
    if not all(_is_exact(field.dataType) for field in frame.schema.fields):
        return None
    return _find_columns(plan, frame)


def _is_exact(kind: DataType) -> bool:
    has_collation = isinstance(kind, StringType) and kind != StringType()
    return isinstance(kind, _EXACT) and not has_collation


def _list_patterns(frame: DataFrame) -> list[Any]:
    """Expressions whose value depends on the time or the session, and subqueries."""
    jvm = cast("Any", frame.sparkSession)._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return [pattern.CURRENT_LIKE(), pattern.PLAN_EXPRESSION()]


def _is_row_wise(plan: Any) -> bool:
    """Whether each row of the input becomes at most one row, whatever the other rows are."""
    while class_name(plan) in _ROW_WISE:
        plan = plan.child()
    return class_name(plan) == "View"  # the view of the only input


def _find_columns(plan: Any, frame: DataFrame) -> Merge | None:
    grouping = list(items(plan.groupingExpressions()))
    keys: list[str] = []
    functions: dict[str, str] = {}
    used: set[int] = set()
    for name, item in zip(frame.columns, items(plan.aggregateExpressions()), strict=True):
        value = item.child() if class_name(item) == "Alias" else item
        matching = [n for n, group in enumerate(grouping) if value.semanticEquals(group)]
        if matching:
            keys.append(name)
            used.update(matching)
        elif (function := _find_function(value)) is not None:
            functions[name] = function
        else:
            return None
    # A key that is not selected could not be compared.
    return Merge(tuple(keys), functions) if used == set(range(len(grouping))) else None


def _find_function(value: Any) -> str | None:
    """Return the aggregate function of a column, if results of it can be merged."""
    if class_name(value) != "AggregateExpression" or value.isDistinct():
        return None
    function = value.aggregateFunction()
    name = class_name(function)
    if name == "Sum" and function.evalContext().evalMode().toString() != "ANSI":
        return None  # `try_sum` is null after an overflow
    return name if name in _MERGED_BY else None


def _quote_column(name: str) -> Column:
    return F.col(quote_name(name))
