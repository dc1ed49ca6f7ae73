"""Parse, check and run a user's SELECT, on classic Spark and on Spark Connect."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import BadSql
from trace_etl.spark.session.failures import first_line
from trace_etl.spark.sql_guard.check import check_plan, list_parameters
from trace_etl.spark.sql_guard.plan_tree import PlanNode, SqlParser

_ORDERING_NODES = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
_MAX_NESTING = 300
_WRAPPERS = ("UnresolvedWith", "PipeOperator")


@dataclass(frozen=True)
class SqlParameter:
    """A value that a SELECT reads as `:name`. None is a null of the parameter's type."""

    kind: Literal["timestamp", "string"]
    value: datetime | str | None


@dataclass(frozen=True)
class CheckedQuery:
    """A text that passed the guard."""

    text: str
    plan: Any
    tree: PlanNode
    parameters: Mapping[str, "SqlParameter"] = field(default_factory=dict[str, "SqlParameter"])

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows. The views that it reads must exist. Raises PySparkException."""
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            return self._make_relation(spark)
        jvm = cast("Any", spark)._jvm
        dataset = jvm.org.apache.spark.sql.classic.Dataset
        plan = _bind_parameters(jvm, self.plan, self.parameters) if self.parameters else self.plan
        return DataFrame(dataset.ofRows(cast("Any", spark)._jsparkSession, plan), spark)

    def _make_relation(self, spark: SparkSession) -> DataFrame:
        """A relation that Spark Connect analyses on demand; `spark.sql` runs commands immediately."""
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.plan import SQL

        bound = {name: to_connect_column(p) for name, p in self.parameters.items()}
        return cast("DataFrame", ConnectFrame(SQL(self.text, named_args=bound), cast("Any", spark)))

    @property
    def is_ordered(self) -> bool:
        """Whether the query orders its rows."""
        node = self.tree
        while node.name in _WRAPPERS:
            node = next(node.nodes())
        return node.name in _ORDERING_NODES


def _bind_parameters(jvm: Any, plan: Any, parameters: Mapping[str, SqlParameter]) -> Any:
    """Bind values to the parsed plan. They never become part of a text."""
    names, values = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
    for name, parameter in parameters.items():
        names.add(name)
        values.add(_make_literal(jvm, parameter))
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    query = jvm.org.apache.spark.sql.catalyst.analysis.NameParameterizedQuery
    return query(plan, to_seq(names), to_seq(values))


def _make_literal(jvm: Any, parameter: SqlParameter) -> Any:
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    literal, companion = expressions.Literal, getattr(expressions, "Literal$")
    make = getattr(companion, "MODULE$").apply
    if isinstance(parameter.value, datetime):
        return make(jvm.java.time.Instant.ofEpochSecond(int(parameter.value.timestamp())))
    if parameter.value is not None:
        return make(parameter.value)
    types = jvm.org.apache.spark.sql.types.DataTypes
    return literal(None, types.TimestampType if parameter.kind == "timestamp" else types.StringType)


def to_connect_column(parameter: SqlParameter) -> Any:
    """A typed literal for Spark Connect."""
    from pyspark.sql.connect import functions as connect_functions

    return connect_functions.lit(parameter.value).cast(parameter.kind)


def _explain(error: Any) -> str:
    """The first line of a Java error, which has no message if the parser ran out of stack."""
    if error.getClass().getSimpleName() == "StackOverflowError":
        return "the query is nested too deeply"
    return str(error.getMessage()).strip().partition("\n")[0]


def _check_nesting(text: str) -> None:
    """Refuse a text that would keep Spark's parser busy for seconds. Raises BadSql."""
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > _MAX_NESTING:
        raise BadSql(
            f"the query is nested too deeply: {deepest} parentheses, at most {_MAX_NESTING}"
        )


def check_query(
    parser: SqlParser,
    text: str,
    inputs: Collection[str],
    parameters: Mapping[str, SqlParameter] | None = None,
) -> CheckedQuery:
    """Check a text. Raises BadSql if it is not one SELECT that reads only the inputs and parameters."""
    bound = parameters or {}
    statement = text.strip().removesuffix(";")
    _check_nesting(statement)
    try:
        plan, tree = parser.parse(statement)
    except PySparkException as error:
        raise BadSql(f"not one SELECT: {first_line(error)}") from error
    except Py4JJavaError as error:  # PySpark translates errors only where it has a JVM itself
        raise BadSql(f"not one SELECT: {_explain(error.java_exception)}") from error
    check_plan(tree, inputs, bound)
    used = {name: bound[name] for name in list_parameters(tree)}
    return CheckedQuery(statement, plan, tree, used)
