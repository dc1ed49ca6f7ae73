"""YAML as data that remembers where each value stood."""

import math
from dataclasses import dataclass
from typing import Any, cast

import yaml

from trace_etl.model.errors import Fault, Invalid

Path = tuple[int | str, ...]
_MOST_NODES = 100_000


@dataclass(frozen=True)
class Located:
    """Plain data, and the line and column of every value in it."""

    data: object
    marks: dict[Path, tuple[int, int]]
    faults: list[Fault]
    """Keys given twice, and values that are no plain data."""

    def fault(self, path: Path, message: str) -> Fault:
        """A fault at a path, or at the nearest thing around it that is really there."""
        there = path
        while there and there not in self.marks:
            there = there[:-1]
        line, column = self.marks.get(there, (1, 1))
        return Fault(_dotted(path), message, line, column)


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def locate(text: str) -> Located:
    """Parse YAML. Raises Invalid with the position of a syntax error."""
    try:
        node = cast(yaml.Node | None, yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        if node is None:
            raise Invalid([Fault("", "the file is empty", 1, 1)])
        walk = _Walk()
        return Located(walk.value(node, ()), walk.marks, walk.faults)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = error.problem or "malformed"
        if error.context and what.startswith("but "):
            what = f"{error.context}, {what}"
        raise Invalid([Fault("", f"not YAML: {what}", *where)]) from error
    except yaml.YAMLError as error:
        raise Invalid([Fault("", f"not YAML: {error}", 1, 1)]) from error
    except RecursionError as error:
        raise Invalid([Fault("", "nested too deeply", 1, 1)]) from error


def inside(text: str, path: Path, line: int, column: int) -> tuple[int, int] | None:
    """Where a place inside a string value stands in the file; both counted from 1.

    Folding and indentation change white space only, so the same characters are counted on both
    sides. None for a value that is not written as it is, with escapes.
    """
    node = cast(yaml.Node | None, yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for part in path:
        node = _child(node, part)
    if not isinstance(node, yaml.ScalarNode):
        return None
    value: str = node.value
    before = sum(len(one) for one in value.splitlines(keepends=True)[: line - 1]) + column - 1
    at = _beginning(text, node)
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


def _child(node: yaml.Node | None, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    return None


def _beginning(text: str, node: yaml.ScalarNode) -> int:
    """The first character of a value: behind its quote, or on the line after `|` or `>`."""
    at: int = node.start_mark.index
    if node.style in ("|", ">"):
        return text.find("\n", at) + 1
    return at + 1 if node.style in ("'", '"') else at


class _Walk:
    def __init__(self) -> None:
        self.marks: dict[Path, tuple[int, int]] = {}
        self.faults: list[Fault] = []
        self.scalars = yaml.SafeLoader("")

    def value(self, node: yaml.Node, path: Path) -> Any:
        # Aliases can make a small file expand without end.
        if len(self.marks) > _MOST_NODES:
            raise Invalid([Fault("", "too large: more than 100,000 values", 1, 1)])
        self.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, n)) for n, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        found = cast(object, self.scalars.construct_object(node))  # pyright: ignore[reportUnknownMemberType]
        if wrong := _not_plain(found):
            self.faults.append(Fault(_dotted(path), wrong, *self.marks[path]))
            return None
        return found

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in found:
                mark = key_node.start_mark
                place = (mark.line + 1, mark.column + 1)
                self.faults.append(Fault(_dotted((*path, key)), "given twice; keep one", *place))
                continue
            found[key] = self.value(value_node, (*path, key))
            self.marks[(*path, key)] = (
                key_node.start_mark.line + 1,
                key_node.start_mark.column + 1,
            )
        return found


def _not_plain(value: object) -> str | None:
    """Why a value cannot be kept as JSON, if it cannot."""
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, str):
        unusable = any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
        return "holds a character that is no text" if unusable else None
    if value is None or isinstance(value, bool | int | float):
        return None
    return f"is a {type(value).__name__} to YAML, which is no plain value; put it in quotes"
