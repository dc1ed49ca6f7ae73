"""Parse, check and run a user's SELECT, on classic Spark and on Spark Connect."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import BadSql
from trace_etl.spark.session.failures import first_line
from trace_etl.spark.sql_guard.check import check_plan
from trace_etl.spark.sql_guard.plan_tree import PlanNode, SqlParser

_ORDERING_NODES = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
_MAX_NESTING = 300
_WRAPPERS = ("UnresolvedWith", "PipeOperator")


@dataclass(frozen=True)
class CheckedQuery:
    """A text that passed the guard."""

    text: str
    plan: Any
    tree: PlanNode

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows. The views that it reads must exist. Raises PySparkException."""
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            return self._make_relation(spark)
        dataset = cast("Any", spark)._jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(cast("Any", spark)._jsparkSession, self.plan), spark)

    def _make_relation(self, spark: SparkSession) -> DataFrame:
        """A relation that Spark Connect analyses on demand; `spark.sql` runs commands immediately."""
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.plan import SQL

        return cast("DataFrame", ConnectFrame(SQL(self.text), cast("Any", spark)))

    @property
    def is_ordered(self) -> bool:
        """Whether the query orders its rows."""
        node = self.tree
        while node.name in _WRAPPERS:
            node = next(node.nodes())
        return node.name in _ORDERING_NODES


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


def check_query(parser: SqlParser, text: str, inputs: Collection[str]) -> CheckedQuery:
    """Check a text. Raises BadSql if it is not one SELECT that reads only the inputs."""
    statement = text.strip().removesuffix(";")
    _check_nesting(statement)
    try:
        plan, tree = parser.parse(statement)
    except PySparkException as error:
        raise BadSql(f"not one SELECT: {first_line(error)}") from error
    except Py4JJavaError as error:  # PySpark translates errors only where it has a JVM itself
        raise BadSql(f"not one SELECT: {_explain(error.java_exception)}") from error
    check_plan(tree, inputs)
    return CheckedQuery(statement, plan, tree)
