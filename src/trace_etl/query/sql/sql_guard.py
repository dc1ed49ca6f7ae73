"""SQL guard: check, on DuckDB's own parse tree, that a query is one SELECT over datasets."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any, cast

import duckdb

from trace_etl.model.errors import Fault, Invalid
from trace_etl.query.requests import Params, TableReference
from trace_etl.query.sql.messages import remove_advice

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
_SYSTEM_PREFIXES = ("pg_", "duckdb_", "pragma_", "current_", "has_", "read_", "__internal_")
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
# Every kind of node that a SELECT may consist of. Any other kind is refused.
_EXPRESSIONS = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT"}
    | {"DEFAULT", "FUNCTION", "LAMBDA", "LAMBDA_REF", "OPERATOR", "POSITIONAL_REFERENCE", "STAR"}
    | {"SUBQUERY", "TYPE", "WINDOW"}
)
_RELATIONS = frozenset(
    {"BASE_TABLE", "CTE_NODE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "RECURSIVE_CTE_NODE"}
    | {"SELECT_NODE", "SET_OPERATION_NODE", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION"}
)
_DETAILS = re.compile(r"ORDER_DEFAULT|ASCENDING|DESCENDING|\w+_MODIFIER|\w+_TYPE_INFO")
# DuckDB resolves these names to system tables where no CTE hides them.
_SYSTEM_TABLES = ("duckdb_", "pg_", "pragma_", "sqlite_")
_PARSE = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)"
_QUERY_KEYWORDS = ("SELECT", "WITH", "FROM", "VALUES")
_FIRST_KEYWORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([A-Za-z_]+)", re.DOTALL)
# DuckDB's lexer needs cubic time for a run of signs: a minute for 4,000 of them.
_SIGNS = re.compile(r"[-+]*\+[-+]*")
_MAX_SIGNS = 100
_MAX_ACCEPTED = 32  # texts whose result is kept: the same query is often sent again
_NO_POSITION = 2**64 - 1
_SEES_ITS_CTE = {("RECURSIVE_CTE_NODE", "right"), ("CTE_NODE", "child")}
# The fields of a statement that selects columns of one table and does nothing else.
_PLAIN_SELECT = {"type", "select_list", "from_table", "aggregate_handling"}
_PLAIN_TABLE = {"type", "query_location", "table_name"}
_PLAIN_STAR = {"class", "type", "query_location", "columns"}
_PLAIN_COLUMN = {"class", "type", "query_location", "column_names"}
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)

Node = dict[str, Any]
Scope = frozenset[str]
"""The names of the CTEs that a node can refer to."""


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
        self._accepted = lru_cache(_MAX_ACCEPTED)(self._analyse)

    def check(self, sql: str, params: Params = None) -> list[TableReference]:
        """Return the datasets that a query reads. Raises Invalid with every fault found."""
        parameters, tables, _ = self._accepted(sql)
        _check_params(set(parameters), params)
        return list(tables)

    def find_stored_columns(self, sql: str) -> tuple[str, ...] | None:
        """Return the columns of a query that selects columns of one dataset and does nothing else.

        Empty means all columns. None for any other query. Raises Invalid.
        """
        return self._accepted(sql)[2]

    def _analyse(
        self, sql: str
    ) -> tuple[frozenset[str], tuple[TableReference, ...], tuple[str, ...] | None]:
        """Return the parameters, the datasets and the stored columns of a query. Raises Invalid."""
        root = self._parse(sql)
        nodes = list(_walk(root))
        faults = {
            (f.line, f.column): f for node in reversed(nodes) for f in _list_faults(sql, *node)
        }
        if faults:
            raise Invalid(list(faults.values())[::-1])
        parameters = frozenset(str(n["identifier"]) for n, _ in nodes if _is_parameter(n))
        tables = tuple(
            TableReference(_fold(node["table_name"]), *_locate(sql, node))
            for node, scope in nodes
            if node.get("type") == "BASE_TABLE" and not _is_cte(node, scope)
        )
        return parameters, tables, _list_stored_columns(root)

    def _parse(self, sql: str) -> Node:
        for signs in _SIGNS.finditer(sql):
            if len(signs[0]) > _MAX_SIGNS:
                where = position(sql, len(sql[: signs.start()].encode()))
                raise Invalid([Fault("sql", "has too many signs in a row; remove some", *where)])
        with self._engine.cursor() as cursor:
            row = cursor.execute(_PARSE, [sql]).fetchone()
        try:
            answer = cast(Node, json.loads(row[0] if row else "{}"))
        except RecursionError as error:
            raise Invalid([Fault("sql", "is nested too deeply; split it with WITH")]) from error
        if answer.get("error"):
            raise Invalid([_parse_fault(sql, answer)])
        statements: list[Node] = answer.get("statements", [])
        if len(statements) != 1:
            problem = "has several statements" if statements else "is empty"
            raise Invalid([Fault("sql", f"{problem}; send one SELECT")])
        return statements[0]


def _list_stored_columns(root: Node) -> tuple[str, ...] | None:
    """Return the columns that a statement selects from one table, without any other clause.

    Fields that are not known here may change the result, so a statement with such a field is refused.
    """
    select: Node = root.get("node", {})
    table: Node = select.get("from_table", {})
    is_plain = (
        select.keys() <= _PLAIN_SELECT
        and select.get("type") == "SELECT_NODE"
        and select.get("aggregate_handling") == "STANDARD_HANDLING"
        and table.keys() <= _PLAIN_TABLE
        and table.get("type") == "BASE_TABLE"
    )
    items = cast(list[Node], select.get("select_list", [])) if is_plain else []
    if len(items) == 1 and items[0].keys() <= _PLAIN_STAR and items[0].get("columns") is False:
        return ()
    if not items or not all(
        item["type"] == "COLUMN_REF"
        and item.keys() <= _PLAIN_COLUMN
        and len(item["column_names"]) == 1
        for item in items
    ):
        return None
    return tuple(str(item["column_names"][0]) for item in items)


def position(sql: str, offset: int) -> tuple[int, int]:
    """Return the line and column of a byte offset, both counted from 1."""
    before = sql.encode()[:offset].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _fold(name: object) -> str:
    """Fold the case like DuckDB does, for ASCII only: `str.lower` maps the Kelvin sign to k."""
    return str(name).translate(_LOWER)


def _walk(root: Node) -> Iterator[tuple[Node, Scope]]:
    """Yield every node of the parse tree with its scope, in the order of the text."""
    pending: list[tuple[object, Scope]] = [(root, frozenset())]
    while pending:
        node, scope = pending.pop()
        if isinstance(node, dict):
            found = cast(Node, node)
            yield found, scope
            pending.extend(reversed(list(_list_children(found, scope))))
        elif isinstance(node, list):
            pending.extend((child, scope) for child in reversed(cast(list[object], node)))


def _list_children(node: Node, scope: Scope) -> Iterator[tuple[object, Scope]]:
    """Yield the values of a node, each with its scope. A CTE is visible after its definition."""
    for entry in cast(list[Node], node.get("cte_map", {}).get("map", [])):
        yield entry["value"], scope
        scope |= {_fold(entry["key"])}
    for key, value in node.items():
        if key == "cte_map" or (key == "value" and node.get("class") == "CONSTANT"):
            continue
        if (str(node.get("type")), key) in _SEES_ITS_CTE:
            yield value, scope | {_fold(node["cte_name"])}
        else:
            yield value, scope


def _is_cte(node: Node, scope: Scope) -> bool:
    """Whether a table reference names a CTE. Names with a schema do not."""
    schema = node.get("schema_name")
    if schema is not None and _fold(schema) != "recurring":
        return False
    return "catalog_name" not in node and _fold(node["table_name"]) in scope


def _locate(sql: str, node: Node) -> tuple[int, int] | tuple[None, None]:
    offset = node.get("query_location", _NO_POSITION)
    return (None, None) if offset == _NO_POSITION else position(sql, int(offset))


def _list_faults(sql: str, node: Node, scope: Scope) -> Iterator[Fault]:
    message = _find_problem(node, scope)
    if message:
        yield Fault("sql", message, *_locate(sql, node))


def _find_problem(node: Node, scope: Scope) -> str | None:
    """Return why a node of the parse tree is not allowed, if it is not."""
    kind = node.get("type")
    if _is_parameter(node):
        return None
    if not _is_known(node):
        return f"{node.get('class', kind)} is not available here"
    if kind == "TABLE_FUNCTION":
        name = _fold(node.get("function", {}).get("function_name", "?"))
        if name not in TABLE_FUNCTIONS:
            return f"cannot read from {name}(); name published datasets instead"
    if "function_name" in node and is_refused(str(node["function_name"])):
        return f"the function {_fold(node['function_name'])} is not available here"
    if kind == "BASE_TABLE":
        return _find_name_problem(node, scope)
    if kind == "SHOW_REF" and "query" not in node:
        return "SHOW is not available here; `trace datasets` lists the datasets"
    return None


def _is_parameter(node: Node) -> bool:
    return node.get("type") == "VALUE_PARAMETER" and node.get("class") == "PARAMETER"


def _check_params(names: set[str], params: Params) -> None:
    """Raise Invalid unless each parameter of the SQL has one value, and each value a parameter."""
    given = (
        set(params) if isinstance(params, dict) else {str(n + 1) for n in range(len(params or ()))}
    )
    faults = [
        Fault("params", f"the parameter ${name} has no value; give it one")
        for name in sorted(names - given)
    ] + [
        Fault("params", f"the SQL has no parameter ${name}; remove its value")
        for name in sorted(given - names)
    ]
    if faults:
        raise Invalid(faults)


def _is_known(node: Node) -> bool:
    if "class" in node:
        return node["class"] in _EXPRESSIONS
    kind = node.get("type", "EMPTY")
    if isinstance(kind, dict):  # a value with its type
        return True
    return kind in _RELATIONS or _DETAILS.fullmatch(str(kind)) is not None


def _find_name_problem(node: Node, scope: Scope) -> str | None:
    name = _fold(node["table_name"])
    if _is_cte(node, scope):
        # Safe even if DuckDB does not see the CTE here: the name must mean nothing else to it.
        if name.startswith(_SYSTEM_TABLES) or "." in name:
            return f"choose another name than {name!r}: system tables and files have such names"
        return None
    return (
        None if _is_bare_name(node) else "only published datasets can be read, by their bare names"
    )


def is_refused(function: str) -> bool:
    """Whether queries must not call a scalar or aggregate function."""
    name = _fold(function)
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
        return Fault("sql", remove_advice(str(answer["error_message"])), *where)
    keyword = _FIRST_KEYWORD.match(sql)
    statement = keyword[1].upper() if keyword else "the text"
    if statement in _QUERY_KEYWORDS:  # a later statement, or the one after a WITH, is another kind
        statement = "a statement that is not a SELECT"
    return Fault("sql", f"{statement} cannot be run here; send one SELECT")
