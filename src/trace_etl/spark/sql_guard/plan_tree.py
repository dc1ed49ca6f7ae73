"""Parse SQL with Spark's parser in a JVM, and describe the parsed plan to Python.

A call into the JVM takes almost a millisecond, and a plan has thousands of parts. So a small
Java class lists all of them in one call. Spark's own compiler for generated code compiles it.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from pyspark.sql import SparkSession

_SOURCE = Path(__file__).with_name("PlanTree.java")
_compiling = threading.Lock()
Kind = Literal["P", "E", "D", "X", "[", "{"]


@dataclass
class PlanNode:
    """A part of a plan: a plan, expression, other value with parts, opaque value or collection."""

    kind: Kind
    class_name: str = ""
    parts: list["PlanNode | str"] = field(default_factory=list["PlanNode | str"])
    """Parts in the order of the class's fields. A text starts with ', a number or boolean with =."""

    @property
    def name(self) -> str:
        """The name of the class without its package."""
        return self.class_name.rpartition(".")[2]

    def nodes(self) -> Iterator["PlanNode"]:
        """The parts that are nodes."""
        return (part for part in self.parts if isinstance(part, PlanNode))

    def texts(self) -> list[str]:
        """The parts that are texts."""
        return [part[1:] for part in self.parts if isinstance(part, str) and part[0] == "'"]


@dataclass(frozen=True)
class SqlParser:
    """Spark's parser in a JVM."""

    gateway: Any
    parser: Any

    @classmethod
    def of_session(cls, spark: SparkSession) -> "SqlParser":
        """The parser of a classic session, with the session's settings."""
        session = cast("Any", spark)
        return cls(session._sc._gateway, session._jsparkSession.sessionState().sqlParser())

    @classmethod
    def of_gateway(cls, gateway: Any) -> "SqlParser":
        """A parser with Spark's default settings, which needs no session."""
        return cls(gateway, gateway.jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser())

    def parse(self, text: str) -> tuple[Any, PlanNode]:
        """Return the plan of a query and its description. Raises PySparkException."""
        plan = self.parser.parseQuery(text)
        with _compiling:  # Py4J confuses two classes with the same name
            lister = _compile(self.gateway)
        return plan, _build_tree(json.loads(lister.apply(plan)))


@lru_cache(maxsize=1)  # a process has one JVM at a time
def _compile(gateway: Any) -> Any:
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text())
    return compiler.getClassLoader().loadClass(_SOURCE.stem).newInstance()


def _build_tree(listed: list[str]) -> PlanNode:
    """Build the tree without recursion, because a plan may be deep."""
    top = PlanNode("[")
    path = [top]
    for item in listed:
        match item[0]:
            case "]":
                path.pop()
            case "'" | "=":
                path[-1].parts.append(item)
            case "P" | "E" | "D" | "X" | "[" | "{" as kind:
                node = PlanNode(kind, item[1:])
                path[-1].parts.append(node)
                if kind != "X":
                    path.append(node)
            case unknown:
                raise AssertionError(f"PlanTree.java listed {unknown}")
    return next(top.nodes())
