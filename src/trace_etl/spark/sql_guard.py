"""A user's SELECT, looked at before it runs. Spark's own parser says what a SELECT is."""

import re
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import BadSql
from trace_etl.spark.session.failures import first_line

_ORDERED = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
_SCRIPT = "ScriptTransformation"
_NO_PROGRAMS = "not one SELECT: TRANSFORM … USING runs a program"
_PARSED = "== Parsed Logical Plan ==\n"
# There the grammar takes a query and nothing else. Never run: only explained.
_AS_VIEW = "CREATE TEMPORARY VIEW q_ AS\n{}"
UNSAFE_FUNCTIONS = (
    *("reflect", "try_reflect", "java_method"),
    *("from_xml", "schema_of_xml", "from_avro", "schema_of_avro"),  # a schema by its path
    *("from_protobuf", "to_protobuf"),
)
_CALL = re.compile(rf"\b({'|'.join(UNSAFE_FUNCTIONS)})\(")
# Words of a text, comments and literals included. A comment may stand before the parenthesis.
_CALL_WORD = re.compile(
    rf"\b({'|'.join(UNSAFE_FUNCTIONS)}|identifier)[`\"]?\s*(?:\(|--|/\*)", re.IGNORECASE
)
_SCRIPT_WORD = re.compile(r"\busing\s*r?['\"]", re.IGNORECASE)
# A table of the server's catalog is named by catalog and schema too; a view of ours is not.
_CATALOG_TABLE = re.compile(r"SubqueryAlias ([^\n]+\.[^\n]+)")
_NAME_OF_PARTS = re.compile(r"UnresolvedRelation \[([^\]\n]*, [^\]\n]*)")
_CUT_SHORT = re.compile(r"\.\.\. \d+ more (?:characters|fields)")


class CheckedQuery(Protocol):
    """One SELECT."""

    def frame(self) -> DataFrame:
        """Its rows, once the views it reads are there. Raises PySparkException or BadSql."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the rows is its author's wish. Known once there is a frame."""
        ...


def check_query(spark: SparkSession, text: str) -> CheckedQuery:
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
        _refuse_script(plan.treeString())
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
    its rows are asked for, and by then it is known to be a query. To explain a query is to optimise
    it, which may call its functions; the body of a view is analysed and left alone.
    """

    spark: SparkSession
    text: str
    is_ordered: bool = False

    def frame(self) -> DataFrame:
        _refuse_words(self.text)
        frame = self._relation(self.text)
        try:
            _ = frame.schema
            _refuse(_explained(self._relation(_AS_VIEW.format(self.text))))
        except ParseException as error:
            raise BadSql(f"not one SELECT: {first_line(error)}") from error
        plans = _explained(frame)
        _refuse(plans)
        self.is_ordered = _root(_parsed(plans)) in _ORDERED
        return frame

    def _relation(self, text: str) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.plan import SQL

        return cast("DataFrame", ConnectFrame(SQL(text), cast("Any", self.spark)))


def _explained(frame: DataFrame) -> str:
    return cast("Any", frame)._explain_string(extended=True)


def _refuse_words(text: str) -> None:
    """What needs no plan to be seen; analysis alone may call some functions. Raises BadSql."""
    if called := _CALL_WORD.search(text):
        raise BadSql(_reaches_out(called[1].lower()))
    if _SCRIPT_WORD.search(text):
        raise BadSql(_NO_PROGRAMS)


def _refuse(plans: str) -> None:
    """What a session of our own cannot do in the first place. Raises BadSql.

    Literals stand in a plan as they are, line ends and all: no part of it can be told from
    another, so all of it is looked at, and a literal that reads like a plan is refused.
    """
    _refuse_script(plans)
    if called := _CALL.search(plans):
        raise BadSql(_reaches_out(called[1]))
    if table := _CATALOG_TABLE.search(plans) or _NAME_OF_PARTS.search(plans):
        raise BadSql(f"{table[1]} is not an input; a SELECT reads its inputs only")


def _refuse_script(plans: str) -> None:
    if cut := _CUT_SHORT.search(plans):
        raise BadSql(f"the plan cannot be judged: Spark tells it in part only ({cut[0]})")
    if _SCRIPT in plans:
        raise BadSql(_NO_PROGRAMS)


def _reaches_out(function: str) -> str:
    if function == "identifier":
        return "IDENTIFIER(…) hides a name; a SELECT names what it reads and calls"
    return f"{function} calls Java methods or reads files by path; a SELECT may not"


def _parsed(plans: str) -> str:
    """The first plan of an explanation, up to what looks like the next."""
    return plans.partition(_PARSED)[2].partition("\n== ")[0]


def _root(plan: str) -> str:
    """The topmost node; below a WITH, the query's own."""
    lines = plan.splitlines() or [""]
    if lines[0].startswith("CTE "):
        lines = [line[3:] for line in lines if line.startswith("+- ")] or [""]
    return lines[0].lstrip("'").partition(" ")[0]
