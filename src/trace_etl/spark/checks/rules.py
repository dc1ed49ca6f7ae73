"""The rules of data checks as Spark expressions. A rule never runs a text that the SQL guard has not seen."""

from collections.abc import Sequence
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    IntegralType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trace_etl.api.task.checks import TaskCheck
from trace_etl.spark.errors import BadSql
from trace_etl.spark.io.column_names import quote_name
from trace_etl.spark.session.failures import first_line, is_spark_lost
from trace_etl.spark.sql_guard.plan_tree import PlanNode, SqlParser
from trace_etl.spark.sql_guard.query import check_query

_ROWS = "checked_rows"  # a name for the rows in the text that the guard sees
# Without an alias, Spark reads `WHERE (name)` as the alias and the columns of the table.
_BEFORE = "SELECT 1 FROM checked_rows AS r WHERE ("
_SHAPE = ("Project", "Filter", "SubqueryAlias", "UnresolvedRelation")
_TIMES = (TimestampType, TimestampNTZType, DateType, IntegralType)
_BLOCK_KEY = ("block_number", "transaction_index", "log_index")
_KEY_COLUMNS = 3


def check_rule(
    parser: SqlParser, check: TaskCheck, rows: DataFrame, referred: StructType | None
) -> None:
    """Check that a rule can run on rows with these columns. Raises BadSql naming the check.

    `referred` has the columns of the input or output that a `references` check names.
    """
    rule = check.rule
    used = [*rule.columns, *([rule.column] if rule.column else []), *check.key]
    _require_columns(check, used, rows.schema, check.output)
    if rule.sql is not None:
        _check_condition(parser, check, rule.sql, rows)
    if rule.column is not None and not isinstance(rows.schema[rule.column].dataType, _TIMES):
        kind = rows.schema[rule.column].dataType.simpleString()
        text = f"{rule.column} is {kind}; it must be a timestamp, a date or seconds since 1970"
        raise BadSql(f"check {check.name}: {text}")
    if check.kind == "references" and referred is not None:
        _require_columns(check, rule.to or rule.columns, referred, rule.input or rule.output or "")


def _require_columns(
    check: TaskCheck, names: Sequence[str], schema: StructType, owner: str
) -> None:
    for name in names:
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise BadSql(f"check {check.name}: {owner} has no column {name}; it has {known}")


def _check_condition(parser: SqlParser, check: TaskCheck, sql: str, rows: DataFrame) -> None:
    """Check that a text is one boolean expression over the columns, and nothing else."""
    try:
        tree = check_query(parser, "\n".join((_BEFORE, sql, ")")), [_ROWS]).tree
        if not _is_expression(tree):
            raise BadSql("must be one expression over the columns, without a subquery")
        kind = rows.select(F.expr(sql)).schema.fields[0].dataType
        if not isinstance(kind, BooleanType):
            raise BadSql(f"must be boolean, not {kind.simpleString()}")
        # Refuses aggregates, windows and generators. Spark Connect analyses only what is asked for.
        _ = rows.agg(count_if_false(sql)).schema
    except BadSql as error:
        raise BadSql(f"check {check.name}, condition: {error.detail}") from error
    except PySparkException as error:
        if is_spark_lost(error):
            raise
        raise BadSql(f"check {check.name}, condition: {first_line(error)}") from error


def _is_expression(tree: PlanNode) -> bool:
    """Whether a plan only filters rows: the text closes no parenthesis early and has no subquery."""
    plans: list[str] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        plans += [node.name] if node.kind == "P" else []
        waiting.extend(node.nodes())
    return tuple(plans) == _SHAPE


def is_false(sql: str) -> Column:
    """Whether a row fails a condition. As in a CHECK constraint, null does not fail."""
    return ~F.coalesce(F.expr(sql), F.lit(True))


def count_if_false(sql: str) -> Column:
    """Count the rows that fail a condition."""
    return F.count_if(is_false(sql))


def has_null(columns: Sequence[str]) -> Column:
    """Whether one of the columns of a row is null."""
    return reduce(Column.__or__, [F.col(quote_name(name)).isNull() for name in columns])


def newest_second(column: str, schema: StructType) -> Column:
    """The newest value of a time column, in seconds since 1970."""
    newest = F.max(F.col(quote_name(column)))
    if isinstance(schema[column].dataType, IntegralType):
        return newest.cast("double")
    return newest.cast("timestamp").cast("double")


def find_duplicates(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The keys of several rows, with the column `n`. A key with a null is equal to no other key."""
    keys = rows.where(~has_null(columns)).select(*(F.col(quote_name(name)) for name in columns))
    grouped = keys.toDF(*(f"k{i}" for i in range(len(columns)))).groupBy(
        *(f"k{i}" for i in range(len(columns)))
    )
    counted = grouped.agg(F.count(F.lit(1)).alias("n")).where(F.col("n") > 1)
    return counted.toDF(*columns, "n")


def find_missing(
    rows: DataFrame, columns: Sequence[str], referred: DataFrame, to: Sequence[str]
) -> DataFrame:
    """The rows whose values do not exist in the referred columns. A row with a null refers to nothing."""
    known = referred.select(
        *(F.col(quote_name(name)).alias(f"__to_{i}") for i, name in enumerate(to))
    )
    pairs = [F.col(quote_name(name)) == F.col(f"__to_{i}") for i, name in enumerate(columns)]
    present = rows.where(~has_null(columns))
    return present.join(known, reduce(Column.__and__, pairs), "left_anti")


def choose_key(check: TaskCheck, unique_key: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that identify failing rows."""
    blocks = [name for name in _BLOCK_KEY if name in names]
    own = check.rule.columns if check.kind == "unique" else []
    for chosen in (check.key, own, unique_key, blocks):
        if chosen and all(name in names for name in chosen):
            return list(chosen)
    return list(names[:_KEY_COLUMNS])
