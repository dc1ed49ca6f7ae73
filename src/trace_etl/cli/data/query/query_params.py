"""`--param name=value`: the values of a query's parameters."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from trace_etl.cli.client import fail

ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:TYPE]=VALUE",
        help="Value of $NAME in the SQL; may be repeated. TYPE is string, int, float, bool or null."
        " Default: an int, float or bool if the value looks like one, otherwise a string.",
    ),
]
_PARAM = re.compile(r"([A-Za-z_]\w*)(?::(\w+))?=(.*)", re.DOTALL)
_INT, _FLOAT = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")
_BOOLEANS = {"true": True, "false": False}
_TYPES: dict[str, Callable[[str], Any]] = {
    "string": str,
    "int": int,
    "float": float,
    "bool": lambda text: _BOOLEANS[text.lower()],
    "null": lambda text: None,
}


def parse_params(options: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse the options. Exits with an error message if one is not valid."""
    return dict(_parse_param(option) for option in options or ()) or None


def _parse_param(option: str) -> tuple[str, Any]:
    found = _PARAM.fullmatch(option)
    if found is None:
        fail([f"--param {option!r}: write NAME=VALUE, or NAME:TYPE=VALUE"])
    name, kind, text = found.groups()
    if kind is None:
        return name, _infer(text)
    if kind not in _TYPES:
        fail([f"--param {option!r}: unknown type {kind!r}; the types are {', '.join(_TYPES)}"])
    try:
        return name, _TYPES[kind](text)
    except (ValueError, KeyError):
        fail([f"--param {option!r}: {text!r} is not of type {kind}; correct the value or its type"])


def _infer(text: str) -> Any:
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _BOOLEANS.get(text, text)
