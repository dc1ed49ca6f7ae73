"""Render names and values as SQL text, where DuckDB cannot bind them: in the definitions of views."""

from typing import Any, cast

from trace_etl.model.errors import Fault, Invalid
from trace_etl.query.requests import DatasetView


def quote_name(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote a string literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_list(texts: list[str]) -> str:
    """Render a list of string literals."""
    return "[" + ", ".join(map(quote_text, texts)) + "]"


def render_where(view: DatasetView, types: dict[str, str]) -> str:
    """Render the filter of an input, like Spark applies it. Raises Invalid for an unknown column."""
    unknown = [name for name in view.where if name not in types]
    if unknown:
        problem = f"the `where` of input {view.name!r} names a column that it does not have"
        raise Invalid([Fault("sql", f"{problem}: {unknown[0]}; correct it in the DAG")])
    return " AND ".join(
        f"{quote_name(name)} IN ({', '.join(_render_value(v, types[name]) for v in _convert_to_list(value))})"
        for name, value in view.where.items()
    )


def _convert_to_list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _render_value(value: object, kind: str) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if kind == "binary" and text.startswith("0x"):  # as hashes and addresses are written
        return f"from_hex({quote_text(text[2:])})"
    return quote_text(text)
