"""A user's SELECT, looked at before it runs. Spark's own parser says what a SELECT is."""

import re
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.pipeline.errors import BadSql

_ORDERED = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
_SCRIPT = "ScriptTransformation"
_NO_PROGRAMS = "not one SELECT: TRANSFORM … USING runs a program"
_PARSED, _ANALYSED = "== Parsed Logical Plan ==", "== Analyzed Logical Plan =="
# Between these parentheses the grammar takes a query and nothing else.
_AS_QUERY = "WITH q_ AS (\n{}\n) SELECT * FROM q_"
_INTO_JAVA = re.compile(r"\b(?:try_)?reflect\(|\bjava_method\(")
# A table of the server's catalog is named by catalog and schema too; a view of ours is not.
_CATALOG_TABLE = re.compile(r"SubqueryAlias (\S+\.\S+)")


class Query(Protocol):
    """One SELECT."""

    def frame(self) -> DataFrame:
        """Its rows, once the views it reads are there. Raises PySparkException or BadSql."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the rows is its author's wish. Known once there is a frame."""
        ...


def parse(spark: SparkSession, text: str) -> Query:
    """Look at a text. Commands, scripts and several statements are no query. Raises BadSql."""
    one = text.strip().removesuffix(";")
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _ToldByServer(spark, one)
    return _Parsed.of(spark, one)


@dataclass(frozen=True)
class _Parsed:
    """With the JVM's parser at hand: the plan itself."""

    spark: SparkSession
    plan: Any

    @classmethod
    def of(cls, spark: SparkSession, text: str) -> "_Parsed":
        try:
            parser = cast("Any", spark)._jsparkSession.sessionState().sqlParser()
            plan = parser.parseQuery(text)
        except PySparkException as error:
            raise BadSql(f"not one SELECT: {first_line(error)}") from error
        if _SCRIPT in plan.treeString():
            raise BadSql(_NO_PROGRAMS)
        return cls(spark, plan)

    def frame(self) -> DataFrame:
        jvm, session = cast("Any", self.spark)._jvm, cast("Any", self.spark)._jsparkSession
        dataset = jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(session, self.plan), self.spark)

    @property
    def is_ordered(self) -> bool:
        name = self.plan.nodeName()
        if name == "UnresolvedWith":
            name = self.plan.children().head().nodeName()
        return name in _ORDERED


@dataclass
class _ToldByServer:
    """Through Spark Connect, which analyses a text without running it and describes the plan.

    `spark.sql` would run a command at once; a relation made of the same text does nothing until
    its rows are asked for, and by then it is known to be a query.
    """

    spark: SparkSession
    text: str
    is_ordered: bool = False

    def frame(self) -> DataFrame:
        frame = self._relation(self.text)
        try:
            _ = frame.schema
            _ = self._relation(_AS_QUERY.format(self.text)).schema
        except ParseException as error:
            raise BadSql(f"not one SELECT: {first_line(error)}") from error
        plans = cast("Any", frame)._explain_string(extended=True)
        parsed, analysed = _section(plans, _PARSED), _section(plans, _ANALYSED)
        _refuse(parsed, analysed)
        self.is_ordered = _root(parsed) in _ORDERED
        return frame

    def _relation(self, text: str) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.plan import SQL

        return cast("DataFrame", ConnectFrame(SQL(text), cast("Any", self.spark)))


def _refuse(parsed: str, analysed: str) -> None:
    """What a session of our own cannot do in the first place. Raises BadSql."""
    if _SCRIPT in parsed:
        raise BadSql(_NO_PROGRAMS)
    if called := _INTO_JAVA.search(analysed):
        raise BadSql(f"{called[0].rstrip('(')} calls Java methods; a SELECT may not")
    if table := _CATALOG_TABLE.search(analysed):
        raise BadSql(f"{table[1]} is not an input; a SELECT reads its inputs only")


def _section(plans: str, title: str) -> str:
    """One plan of an extended explanation."""
    return plans.partition(f"{title}\n")[2].partition("\n== ")[0]


def _root(plan: str) -> str:
    """The topmost node; below a WITH, the query's own."""
    lines = plan.splitlines() or [""]
    if lines[0].startswith("CTE "):
        lines = [line[3:] for line in lines if line.startswith("+- ")] or [""]
    return lines[0].lstrip("'").partition(" ")[0]


def first_line(error: Exception) -> str:
    """Without the plan or the stack that follows it."""
    return str(error).strip().partition("\n")[0]
