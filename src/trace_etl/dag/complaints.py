"""Saying what is wrong with a value, and what would be right."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import ErrorDetails

_PATTERNS = {
    r"^[a-z][a-z0-9_]{0,127}$": "must be lower case letters, digits and _, starting with a letter",
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}$": "must be letters, digits and _, not starting with a digit",
    r"^[0-9a-f]{64}$": "must be a SHA-256: 64 of 0-9 and a-f",
}


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"


def complaint(error: ErrorDetails, known_fields: Iterable[str]) -> str:
    """One fault of a schema, in our words."""
    say = _WORDS.get(error["type"])
    if error["type"] == "extra_forbidden":
        return "unknown field" + suggest(str(error["loc"][-1]), known_fields)
    return say(error, error.get("ctx", {})) if say else error["msg"].removeprefix("Value error, ")


def shown(value: object) -> str:
    """A value as the file had it, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


Context = dict[str, Any]


def _literal(error: ErrorDetails, context: Context) -> str:
    known = [w.strip("' ") for w in str(context["expected"]).replace(" or ", ",").split(",")]
    given = error["input"]
    close = difflib.get_close_matches(str(given), known, n=1, cutoff=0.6)
    ask = f"; did you mean {close[0]!r}?" if close and close[0] != given else ""
    return f"must be {_either(known)}, not {shown(given)}{ask}"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _must_be(what: str) -> Callable[[ErrorDetails, Context], str]:
    return lambda error, _: f"must be {what}, not {shown(error['input'])}"


def _text(error: ErrorDetails, _: Context) -> str:
    plain = isinstance(error["input"], bool | int | float)
    return f"must be text, not {shown(error['input'])}" + ("; put it in quotes" if plain else "")


def _pattern(error: ErrorDetails, context: Context) -> str:
    rule = _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    return f"{rule}, not {shown(error['input'])}"


def _at_least(error: ErrorDetails, context: Context) -> str:
    return f"must be at least {context['ge']:,}, not {shown(error['input'])}"


def _at_most(error: ErrorDetails, context: Context) -> str:
    return f"must be at most {context['le']:,}, not {shown(error['input'])}"


def _missing(*_: object) -> str:
    return "is required and missing"


def _empty(*_: object) -> str:
    return "must not be empty"


_WHOLE = _must_be("a whole number")
_MAP = _must_be("a map")
_WORDS: dict[str, Callable[[ErrorDetails, Context], str]] = {
    "missing": _missing,
    "literal_error": _literal,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _must_be("a number"),
    "float_parsing": _must_be("a number"),
    "bool_type": _must_be("true or false"),
    "bool_parsing": _must_be("true or false"),
    "string_type": _text,
    "list_type": _must_be("a list"),
    "tuple_type": _must_be("a list"),
    "dict_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
    "string_pattern_mismatch": _pattern,
    "string_too_short": _empty,
    "too_short": _empty,
    "greater_than_equal": _at_least,
    "less_than_equal": _at_most,
}
