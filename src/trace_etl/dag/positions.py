"""Parse YAML into plain data, with the line and column of every value."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import yaml

from trace_etl.dag.error_messages import show_value
from trace_etl.model.errors import Fault, Invalid

FieldPath = tuple[int | str, ...]
_MAX_VALUES = 100_000
_MAX_INTEGER_BITS = 14_000
"""Python refuses to print integers of more than 4,300 digits."""
_CONSTRUCTION_ERRORS = (ValueError, LookupError, AttributeError)
"""What PyYAML raises for a scalar that its tag cannot represent: `2024-13-45`, `!!int x`, `!!bool x`."""


@dataclass(frozen=True)
class Located:
    """Plain data, and the line and column of every value."""

    data: object
    positions: dict[FieldPath, tuple[int, int]]
    faults: list[Fault]
    """Keys that are given twice, and values that JSON cannot represent."""

    def fault(self, path: FieldPath, message: str) -> Fault:
        """Return a fault with the position of a path, or of its nearest parent that exists."""
        existing = path
        while existing and existing not in self.positions:
            existing = existing[:-1]
        line, column = self.positions.get(existing, (1, 1))
        return Fault(_format_path(path), message, line, column)


def _format_path(path: FieldPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def locate(text: str) -> Located:
    """Parse YAML. Raises Invalid with the position of a syntax error."""
    try:
        node = cast(yaml.Node | None, yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        if node is None:
            raise Invalid([Fault("", "the file is empty; add `name` and `jobs`", 1, 1)])
        reader = _NodeReader()
        return Located(reader.read(node, ()), reader.positions, reader.faults)
    except yaml.MarkedYAMLError as error:
        mark = _find_cause(text, error)
        where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Invalid(
            [Fault("", f"invalid YAML: {_explain(text, error, *where)}", *where)]
        ) from error
    except yaml.YAMLError as error:
        raise Invalid([Fault("", f"invalid YAML: {error}", 1, 1)]) from error
    except RecursionError as error:
        raise Invalid(
            [Fault("", "the file is nested too deeply; use fewer levels", 1, 1)]
        ) from error


# Errors that the parser notices after the place to correct.
_LATE = ("could not find expected ':'", "found unexpected end of stream", "expected ',' or ")
_FLOW = "while parsing a flow "


def _find_cause(text: str, error: yaml.MarkedYAMLError) -> yaml.Mark | None:
    """Return the place to correct: the parser may notice an error some lines later."""
    problem = error.problem or ""
    if (error.context or "").startswith(_FLOW) and "<stream end>" in problem:
        return _find_open_brackets(text).pop()
    return (error.context_mark if problem.startswith(_LATE) else None) or error.problem_mark


def _find_open_brackets(text: str) -> list[yaml.Mark]:
    """Return the brackets that are not closed at the end of the text."""
    opened: list[yaml.Mark] = []
    tokens = cast(Iterator[yaml.Token], yaml.scan(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for token in tokens:
        if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
            opened.append(token.start_mark)
        elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken) and opened:
            opened.pop()
    return opened


_PROBLEMS = (
    (
        r"mapping values are not allowed",
        "a second `:` in this place; indent the line like its neighbours, or put the value in quotes",
    ),
    (
        r"could not find expected ':'",
        "a line without `:`; write `name: value`, or indent it as part of the value above",
    ),
    (
        r".*but found '([]}])'",
        r"`\1` closes nothing; remove it, or add the bracket that it closes",
    ),
    (
        r"but found '<block|expected <block end>",
        "wrong indentation: this line is indented differently from the others of its list or section; "
        "align it with them",
    ),
    (
        r"found unexpected end of stream",
        "this quote is not closed; add the quote that closes it",
    ),
    (
        r"found character '(.)' that cannot start any token",
        r"a value cannot start with `\1`; put it in quotes",
    ),
    (
        r"found undefined alias '(.*)'",
        r"`*\1` names no anchor; write `&\1` at the value that it repeats, or put it in quotes",
    ),
    (
        r"but found another document",
        "a second document; a file has one DAG, so remove the `---`",
    ),
    (
        r"could not determine a constructor for the tag '(.*)'",
        r"the tag `\1` is not supported; remove it",
    ),
)
"""Patterns of the parser's messages, and what they mean."""


def _explain(text: str, error: yaml.MarkedYAMLError, line: int, column: int) -> str:
    """Say in plain words what is wrong with the syntax, and how to fix it."""
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    before = here[: len(here) - len(here.lstrip())]
    if "\t" in before or here[column - 1 : column] == "\t":
        return "a tab; indent with spaces, two per level"
    problem = error.problem or "syntax error"
    opening = here[column - 1 : column]
    closing = {"[": "]", "{": "}"}.get(opening)
    if closing and "<stream end>" in problem:
        return f"this `{opening}` is not closed; add `{closing}`"
    if closing and problem.startswith("expected ',' or ") and (mark := error.problem_mark):
        return (
            f"this `{opening}` is not closed before line {mark.line + 1}, column {mark.column + 1}; add "
            f"`{closing}`, or `,` between two values, or remove a bracket too many"
        )
    for pattern, explanation in _PROBLEMS:
        if match := re.match(pattern, problem):
            return match.expand(explanation)
    if error.context and problem.startswith("but "):
        return f"{error.context}, {problem}"
    return problem


def locate_inside(text: str, path: FieldPath, line: int, column: int) -> tuple[int, int] | None:
    """Convert a line and column inside a string value to the line and column in the file, both from 1.

    YAML folding and indentation change only white space, so this function counts the other characters.
    None: the file writes the value with escapes.
    """
    node = cast(yaml.Node | None, yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for part in path:
        node = _get_child(node, part)
    if not isinstance(node, yaml.ScalarNode):
        return None
    value: str = node.value
    before = sum(len(one) for one in value.splitlines(keepends=True)[: line - 1]) + column - 1
    at = _find_first_character(text, node)
    for n, character in enumerate(value[: before + 1]):
        if character.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text) or text[at] != character:
            return None
        if n == before:
            break
        at += 1
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _get_child(node: yaml.Node | None, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    return None


def _find_first_character(text: str, node: yaml.ScalarNode) -> int:
    """Return the index of a value's first character: after its quote, or in the line after `|` or `>`."""
    at: int = node.start_mark.index
    if node.style in ("|", ">"):
        return text.find("\n", at) + 1
    return at + 1 if node.style in ("'", '"') else at


class _NodeReader:
    """Converts YAML nodes to plain data, and records their positions and faults."""

    def __init__(self) -> None:
        self.positions: dict[FieldPath, tuple[int, int]] = {}
        self.faults: list[Fault] = []
        self.scalars = yaml.SafeLoader("")

    def read(self, node: yaml.Node, path: FieldPath) -> Any:
        # Aliases can expand a small file to any number of values.
        if len(self.positions) > _MAX_VALUES:
            raise Invalid(
                [Fault("", f"the file has more than {_MAX_VALUES:,} values; split the DAG", 1, 1)]
            )
        self.positions[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, n)) for n, item in enumerate(node.value)]
        return self._read_scalar(node, path)

    def _read_scalar(self, node: yaml.Node, path: FieldPath) -> Any:
        try:
            value = cast(object, self.scalars.construct_object(node))  # pyright: ignore[reportUnknownMemberType]
            rule = _explain_unsupported(value)
        except _CONSTRUCTION_ERRORS:
            value, rule = None, _explain_unreadable(node)
        if rule:
            self.faults.append(Fault(_format_path(path), rule, *self.positions[path]))
            return None
        return value

    def _read_mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            position = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if rule := _explain_unsupported(key):
                self.faults.append(Fault(_format_path(path), f"has a key that {rule}", *position))
            elif key in mapping:
                field = _format_path((*path, key))
                self.faults.append(Fault(field, "is given twice; keep one", *position))
            else:
                mapping[key] = self.read(value_node, (*path, key))
                self.positions[(*path, key)] = position
        return mapping


def _explain_unsupported(value: object) -> str | None:
    """Return why JSON cannot represent a value; None: it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if isinstance(value, str):
        has_bad_characters = any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
        return "contains a NUL or surrogate character; remove it" if has_bad_characters else None
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return "is an integer with too many digits; use a smaller one, or put it in quotes"
    if value is None or isinstance(value, bool | int | float):
        return None
    return f"is a {type(value).__name__} in YAML; put it in quotes"


def _explain_unreadable(node: yaml.Node) -> str:
    kind = node.tag.rpartition(":")[2]
    return f"is not a valid {kind}: {show_value(node.value)}; correct it, or put it in quotes"
