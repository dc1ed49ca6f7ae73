"""The SQL guard: check, with Spark's parser, that a user's text is one harmless SELECT."""

import re
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from trace_etl.spark.errors import BadSql
from trace_etl.spark.session.failures import first_line

_ORDERING_NODES = ("Sort", "GlobalLimit", "LocalLimit", "Offset")
_SCRIPT = "ScriptTransformation"
_NO_PROGRAMS = "not one SELECT: TRANSFORM … USING runs a program; remove it"
_PARSED = "== Parsed Logical Plan ==\n"
# The grammar accepts only a query in this place. The statement is explained, never run.
_AS_VIEW = "CREATE TEMPORARY VIEW q_ AS\n{}"
UNSAFE_FUNCTIONS = (
    *("reflect", "try_reflect", "java_method"),
    *("from_xml", "schema_of_xml", "from_avro", "schema_of_avro"),  # read a schema from a path
    *("from_protobuf", "to_protobuf"),
)
_CALL = re.compile(rf"\b({'|'.join(UNSAFE_FUNCTIONS)})\(")
# Matches in the raw text, including comments and literals. A comment may precede the parenthesis.
_CALL_WORD = re.compile(
    rf"\b({'|'.join(UNSAFE_FUNCTIONS)}|identifier)[`\"]?\s*(?:\(|--|/\*)", re.IGNORECASE
)
_SCRIPT_WORD = re.compile(r"\busing\s*r?['\"]", re.IGNORECASE)
# A table of the server's catalog has a name of several parts; a view of an input has not.
_CATALOG_TABLE = re.compile(r"SubqueryAlias ([^\n]+\.[^\n]+)")
_NAME_OF_PARTS = re.compile(r"UnresolvedRelation \[([^\]\n]*, [^\]\n]*)")
_CUT_SHORT = re.compile(r"\.\.\. \d+ more (?:characters|fields)")


class CheckedQuery(Protocol):
    """A text that passed the guard."""

    def frame(self) -> DataFrame:
        """The rows. The views that it reads must exist. Raises PySparkException or BadSql."""
        ...

    @property
    def is_ordered(self) -> bool:
        """Whether the query orders its rows. Valid after `frame`."""
        ...


def check_query(spark: SparkSession, text: str) -> CheckedQuery:
    """Check a text. Raises BadSql for commands, scripts and several statements."""
    statement = text.strip().removesuffix(";")
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return _ConnectQuery(spark, statement)
    return _ClassicQuery.parse(spark, statement)


@dataclass(frozen=True)
class _ClassicQuery:
    """Checks the plan that the JVM's parser returns."""

    spark: SparkSession
    plan: Any

    @classmethod
    def parse(cls, spark: SparkSession, text: str) -> "_ClassicQuery":
        try:
            parser = cast("Any", spark)._jsparkSession.sessionState().sqlParser()
            plan = parser.parseQuery(text)
        except PySparkException as error:
            raise BadSql(f"not one SELECT: {first_line(error)}") from error
        _reject_scripts(plan.treeString())
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
        return name in _ORDERING_NODES


@dataclass
class _ConnectQuery:
    """Checks the plan that a Spark Connect server describes, without running the text.

    `spark.sql` would run a command immediately. A relation made from the same text does nothing until
    its rows are requested, and that happens only after the check. Explaining a query optimises it,
    which may call its functions; the body of a view is only analysed.
    """

    spark: SparkSession
    text: str
    is_ordered: bool = False

    def frame(self) -> DataFrame:
        _check_text(self.text)
        frame = self._make_relation(self.text)
        try:
            _ = frame.schema
            _check_plans(_explain(self._make_relation(_AS_VIEW.format(self.text))))
        except ParseException as error:
            raise BadSql(f"not one SELECT: {first_line(error)}") from error
        plans = _explain(frame)
        _check_plans(plans)
        self.is_ordered = _find_root(_first_plan(plans)) in _ORDERING_NODES
        return frame

    def _make_relation(self, text: str) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.plan import SQL

        return cast("DataFrame", ConnectFrame(SQL(text), cast("Any", self.spark)))


def _explain(frame: DataFrame) -> str:
    return cast("Any", frame)._explain_string(extended=True)


def _check_text(text: str) -> None:
    """Reject unsafe calls before analysis, which may already run some. Raises BadSql."""
    if called := _CALL_WORD.search(text):
        raise BadSql(_describe_call(called[1].lower()))
    if _SCRIPT_WORD.search(text):
        raise BadSql(_NO_PROGRAMS)


def _check_plans(plans: str) -> None:
    """Reject what a local session prevents by its configuration. Raises BadSql.

    A plan shows literals unescaped, including line ends, so a literal cannot be distinguished from
    the plan around it. The check covers all text, and rejects a literal that looks like a plan.
    """
    _reject_scripts(plans)
    if called := _CALL.search(plans):
        raise BadSql(_describe_call(called[1]))
    if table := _CATALOG_TABLE.search(plans) or _NAME_OF_PARTS.search(plans):
        raise BadSql(f"{table[1]} is not an input of the job; a SELECT may read only its inputs")


def _reject_scripts(plans: str) -> None:
    if cut := _CUT_SHORT.search(plans):
        raise BadSql(f"cannot validate the query: Spark truncated its plan ({cut[0]}); shorten it")
    if _SCRIPT in plans:
        raise BadSql(_NO_PROGRAMS)


def _describe_call(function: str) -> str:
    if function == "identifier":
        return "IDENTIFIER(…) is not allowed in a SELECT; write the name itself"
    return f"{function} is not allowed in a SELECT: it calls Java methods or reads files by path"


def _first_plan(plans: str) -> str:
    """The parsed plan of an explanation, up to the heading of the next plan."""
    return plans.partition(_PARSED)[2].partition("\n== ")[0]


def _find_root(plan: str) -> str:
    """The name of the topmost node; below a WITH, of the query's topmost node."""
    lines = plan.splitlines() or [""]
    if lines[0].startswith("CTE "):
        lines = [line[3:] for line in lines if line.startswith("+- ")] or [""]
    return lines[0].lstrip("'").partition(" ")[0]
