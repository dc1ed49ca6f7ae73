"""Error messages for invalid values in DAG files: what is wrong, and what is allowed."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import ErrorDetails

_PATTERNS = {
    r"^[a-z][a-z0-9_]{0,127}$": "must consist of lower-case letters, digits and _, and start with a letter",
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$": "must consist of letters, digits and _, and not start with a digit",
    r"^[0-9a-f]{64}$": "must be a SHA-256 in 64 hexadecimal digits (0-9, a-f)",
}


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?`, or the list of known names if none is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; choose one of {', '.join(names)}"


def describe_error(error: ErrorDetails, known_fields: Iterable[str]) -> str:
    """Return the message for one validation error of pydantic."""
    describe = _MESSAGES.get(error["type"])
    if error["type"] == "extra_forbidden":
        return "unknown field" + suggest(str(error["loc"][-1]), known_fields)
    if describe:
        return describe(error, error.get("ctx", {}))
    return error["msg"].removeprefix("Value error, ")


def show_value(value: object) -> str:
    """Return a value as short text, in the form that the file has."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


Context = dict[str, Any]


def _describe_literal(error: ErrorDetails, context: Context) -> str:
    known = [name.strip("' ") for name in str(context["expected"]).replace(" or ", ",").split(",")]
    value = error["input"]
    close = difflib.get_close_matches(str(value), known, n=1, cutoff=0.6)
    suggestion = f"; did you mean {close[0]!r}?" if close and close[0] != value else ""
    return f"must be {_join_with_or(known)}, not {show_value(value)}{suggestion}"


def _join_with_or(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _require_type(name: str) -> Callable[[ErrorDetails, Context], str]:
    return lambda error, _: f"must be {name}, not {show_value(error['input'])}"


def _describe_text(error: ErrorDetails, _: Context) -> str:
    plain = isinstance(error["input"], bool | int | float)
    return f"must be text, not {show_value(error['input'])}" + (
        "; put it in quotes" if plain else ""
    )


def _describe_pattern(error: ErrorDetails, context: Context) -> str:
    rule = _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    return f"{rule}, but is {show_value(error['input'])}"


def _describe_empty(*_: object) -> str:
    return "must not be empty; add a value"


_INTEGER = _require_type("a whole number")
_MAP = _require_type("a map")
_MESSAGES: dict[str, Callable[[ErrorDetails, Context], str]] = {
    "missing": lambda _error, _context: "is required but missing; add it",
    "literal_error": _describe_literal,
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "float_type": _require_type("a number"),
    "float_parsing": _require_type("a number"),
    "bool_type": _require_type("true or false"),
    "bool_parsing": _require_type("true or false"),
    "string_type": _describe_text,
    "list_type": _require_type("a list"),
    "tuple_type": _require_type("a list"),
    "dict_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
    "string_pattern_mismatch": _describe_pattern,
    "string_too_short": _describe_empty,
    "too_short": _describe_empty,
    "greater_than_equal": lambda e, ctx: (
        f"must be at least {ctx['ge']:,}, not {show_value(e['input'])}"
    ),
    "less_than_equal": lambda e, ctx: (
        f"must be at most {ctx['le']:,}, not {show_value(e['input'])}"
    ),
}
