"""What may be asked: one SELECT over datasets, judged on DuckDB's own parse of it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import duckdb

from trace_etl.model.errors import Fault, Invalid

# Of the functions that stand in a FROM, only those that read nothing.
TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
)
# Scalar functions that tell of the machine, run SQL out of strings, wait, or leave traces.
# Those that begin like the system's own are refused as well, save the ones known to be harmless.
_REFUSED = frozenset(
    {
        "getenv",
        "getvariable",
        "get_block_size",
        "format_type",
        "in_search_path",
        "json_serialize_plan",
        "json_serialize_sql",
        "json_deserialize_sql",
        "json_execute_serialized_sql",
        "nextval",
        "currval",
        "setseed",
        "sleep_ms",
        "stats",
        "txid_current",
        "write_log",
        "parse_duckdb_log_message",
    }
)
_SYSTEM_PREFIXES = ("pg_", "duckdb_", "pragma_", "current_", "has_", "read_")
_HARMLESS = frozenset(
    {
        "pg_typeof",
        "pg_size_pretty",
        "current_date",
        "current_time",
        "current_timestamp",
        "current_localtime",
        "current_localtimestamp",
    }
)
_PARSE = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)"
_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([A-Za-z_]+)", re.DOTALL)
# DuckDB's lexer takes cubic time over these: 4,000 of them are a minute.
_SIGNS = re.compile(r"[-+]*\+[-+]*")
_MOST_SIGNS = 100
_NOWHERE = 2**64 - 1

Node = dict[str, Any]


@dataclass(frozen=True)
class Mention:
    """A table named in the SQL, and where."""

    name: str
    line: int | None
    column: int | None

    def fault(self, message: str) -> Fault:
        return Fault("sql", message, self.line, self.column)


@dataclass(frozen=True)
class Admitted:
    """A SELECT that may run: the tables it names, and the names it gives itself by WITH."""

    sql: str
    tables: tuple[Mention, ...]
    own: frozenset[str]

    @property
    def names(self) -> list[str]:
        return sorted({table.name for table in self.tables})


class Gate:
    """Parses with an engine that can reach nothing; safe to use from many threads."""

    def __init__(self) -> None:
        self._engine = duckdb.connect(
            ":memory:",
            config={
                "enable_external_access": False,
                "python_enable_replacements": False,
                "lock_configuration": True,
                "threads": 1,
            },
        )

    def admit(self, sql: str) -> Admitted:
        """Check a query. Raises Invalid with every fault found."""
        nodes = list(_walk(self._parse(sql)))
        faults = {(f.line, f.column): f for node in reversed(nodes) for f in _faults(sql, node)}
        if faults:
            raise Invalid(list(faults.values())[::-1])
        tables = [_mention(sql, node) for node in nodes if node.get("type") == "BASE_TABLE"]
        return Admitted(sql, tuple(tables), frozenset(_own_names(nodes)))

    def _parse(self, sql: str) -> Node:
        for signs in _SIGNS.finditer(sql):
            if len(signs[0]) > _MOST_SIGNS:
                where = position(sql, len(sql[: signs.start()].encode()))
                raise Invalid([Fault("sql", "has too many signs in a row", *where)])
        with self._engine.cursor() as cursor:
            row = cursor.execute(_PARSE, [sql]).fetchone()
        try:
            answer = cast(Node, json.loads(row[0] if row else "{}"))
        except RecursionError as error:
            raise Invalid([Fault("sql", "is nested too deeply")]) from error
        if answer.get("error"):
            raise Invalid([_parse_fault(sql, answer)])
        statements: list[Node] = answer.get("statements", [])
        if len(statements) != 1:
            what = "holds several statements" if statements else "is empty"
            raise Invalid([Fault("sql", f"{what}; send one SELECT")])
        return statements[0]


def position(sql: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of a byte offset."""
    before = sql.encode()[:offset].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _walk(root: Node) -> Iterator[Node]:
    """Every object of the parse, in the order of the text."""
    waiting: list[object] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            found = cast(Node, node)
            yield found
            waiting.extend(reversed(list(found.values())))
        elif isinstance(node, list):
            waiting.extend(reversed(cast(list[object], node)))


def _own_names(nodes: list[Node]) -> Iterator[str]:
    for node in nodes:
        for entry in cast(list[Node], node.get("cte_map", {}).get("map", [])):
            yield str(entry["key"]).lower()
        if "cte_name" in node:
            yield str(node["cte_name"]).lower()


def _mention(sql: str, node: Node) -> Mention:
    line, column = _place(sql, node)
    return Mention(str(node["table_name"]).lower(), line, column)


def _place(sql: str, node: Node) -> tuple[int, int] | tuple[None, None]:
    offset = node.get("query_location", _NOWHERE)
    return (None, None) if offset == _NOWHERE else position(sql, int(offset))


def _faults(sql: str, node: Node) -> Iterator[Fault]:
    message = _objection(node)
    if message:
        yield Fault("sql", message, *_place(sql, node))


def _objection(node: Node) -> str | None:
    """What is wrong with one node of the parse."""
    kind = node.get("type")
    if kind == "TABLE_FUNCTION":
        name = str(node.get("function", {}).get("function_name", "?")).lower()
        if name not in TABLE_FUNCTIONS:
            return f"{name}() cannot be read from; name published datasets instead"
    if "function_name" in node and is_refused(str(node["function_name"])):
        return f"the function {str(node['function_name']).lower()} is not available here"
    if kind == "BASE_TABLE" and not _is_plain(node):
        return "only published datasets can be read, by their bare names"
    if kind == "SHOW_REF" and "query" not in node:
        return "SHOW is not available here; `trace datasets` lists the datasets"
    if kind == "VALUE_PARAMETER":
        return "a parameter has no value here; write the value into the SQL"
    return None


def is_refused(function: str) -> bool:
    """Whether a scalar or aggregate function may not be called."""
    name = function.lower()
    return name in _REFUSED or (name.startswith(_SYSTEM_PREFIXES) and name not in _HARMLESS)


def _is_plain(node: Node) -> bool:
    return (
        node.get("catalog_name", "") in ("", "memory")
        and node.get("schema_name", "") in ("", "main")
        and "at_clause" not in node
    )


def _parse_fault(sql: str, answer: Node) -> Fault:
    if answer.get("error_type") == "parser":
        place = position(sql, int(answer["position"])) if "position" in answer else (None, None)
        return Fault("sql", str(answer["error_message"]), *place)
    word = _WORD.match(sql)
    what = word[1].upper() if word else "this"
    return Fault("sql", f"only one SELECT can be run here, not {what}")
