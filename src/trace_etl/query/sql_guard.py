"""SQL guard: check, on DuckDB's own parse tree, that a query is one SELECT over datasets."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import duckdb

from trace_etl.model.errors import Fault, Invalid

# Table functions that read no file and no system table.
TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
)
# Scalar functions that reveal the machine, run SQL from strings, wait, or have side effects.
# Functions with a system prefix are refused as well, except the ones known to be harmless.
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
_FIRST_KEYWORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([A-Za-z_]+)", re.DOTALL)
# DuckDB's lexer needs cubic time for a run of signs: a minute for 4,000 of them.
_SIGNS = re.compile(r"[-+]*\+[-+]*")
_MAX_SIGNS = 100
_NO_POSITION = 2**64 - 1

Node = dict[str, Any]


@dataclass(frozen=True)
class TableReference:
    """A table that the SQL names, and its position."""

    name: str
    line: int | None
    column: int | None

    def fault(self, message: str) -> Fault:
        return Fault("sql", message, self.line, self.column)


@dataclass(frozen=True)
class GuardedQuery:
    """A SELECT that may run, the tables it names, and the names that its WITH clauses define."""

    sql: str
    tables: tuple[TableReference, ...]
    cte_names: frozenset[str]

    @property
    def names(self) -> list[str]:
        return sorted({table.name for table in self.tables})


class SqlGuard:
    """Parses with an engine that has no access to files or the network. Thread-safe."""

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

    def check(self, sql: str) -> GuardedQuery:
        """Check a query. Raises Invalid with every fault found."""
        nodes = list(_walk(self._parse(sql)))
        faults = {
            (f.line, f.column): f for node in reversed(nodes) for f in _list_faults(sql, node)
        }
        if faults:
            raise Invalid(list(faults.values())[::-1])
        tables = [_read_reference(sql, node) for node in nodes if node.get("type") == "BASE_TABLE"]
        return GuardedQuery(sql, tuple(tables), frozenset(_list_cte_names(nodes)))

    def _parse(self, sql: str) -> Node:
        for signs in _SIGNS.finditer(sql):
            if len(signs[0]) > _MAX_SIGNS:
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
            problem = "has several statements" if statements else "is empty"
            raise Invalid([Fault("sql", f"{problem}; send one SELECT")])
        return statements[0]


def position(sql: str, offset: int) -> tuple[int, int]:
    """Return the line and column of a byte offset, both counted from 1."""
    before = sql.encode()[:offset].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _walk(root: Node) -> Iterator[Node]:
    """Yield every node of the parse tree, in the order of the text."""
    pending: list[object] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            found = cast(Node, node)
            yield found
            pending.extend(reversed(list(found.values())))
        elif isinstance(node, list):
            pending.extend(reversed(cast(list[object], node)))


def _list_cte_names(nodes: list[Node]) -> Iterator[str]:
    for node in nodes:
        for entry in cast(list[Node], node.get("cte_map", {}).get("map", [])):
            yield str(entry["key"]).lower()
        if "cte_name" in node:
            yield str(node["cte_name"]).lower()


def _read_reference(sql: str, node: Node) -> TableReference:
    line, column = _locate(sql, node)
    return TableReference(str(node["table_name"]).lower(), line, column)


def _locate(sql: str, node: Node) -> tuple[int, int] | tuple[None, None]:
    offset = node.get("query_location", _NO_POSITION)
    return (None, None) if offset == _NO_POSITION else position(sql, int(offset))


def _list_faults(sql: str, node: Node) -> Iterator[Fault]:
    message = _find_problem(node)
    if message:
        yield Fault("sql", message, *_locate(sql, node))


def _find_problem(node: Node) -> str | None:
    """Return why a node of the parse tree is not allowed, if it is not."""
    kind = node.get("type")
    if kind == "TABLE_FUNCTION":
        name = str(node.get("function", {}).get("function_name", "?")).lower()
        if name not in TABLE_FUNCTIONS:
            return f"cannot read from {name}(); name published datasets instead"
    if "function_name" in node and is_refused(str(node["function_name"])):
        return f"the function {str(node['function_name']).lower()} is not available here"
    if kind == "BASE_TABLE" and not _is_bare_name(node):
        return "only published datasets can be read, by their bare names"
    if kind == "SHOW_REF" and "query" not in node:
        return "SHOW is not available here; `trace datasets` lists the datasets"
    if kind == "VALUE_PARAMETER":
        return "a parameter has no value here; write the value into the SQL"
    return None


def is_refused(function: str) -> bool:
    """Whether queries must not call a scalar or aggregate function."""
    name = function.lower()
    return name in _REFUSED or (name.startswith(_SYSTEM_PREFIXES) and name not in _HARMLESS)


def _is_bare_name(node: Node) -> bool:
    return (
        node.get("catalog_name", "") in ("", "memory")
        and node.get("schema_name", "") in ("", "main")
        and "at_clause" not in node
    )


def _parse_fault(sql: str, answer: Node) -> Fault:
    if answer.get("error_type") == "parser":
        where = position(sql, int(answer["position"])) if "position" in answer else (None, None)
        return Fault("sql", str(answer["error_message"]), *where)
    keyword = _FIRST_KEYWORD.match(sql)
    statement = keyword[1].upper() if keyword else "this"
    return Fault("sql", f"only one SELECT can be run here, not {statement}")
