"""Read-time filters on input edges: AND over keys, a scalar means `=`, a list means `IN`."""

import re
from typing import Any, cast

from trace_etl.model.errors import Fault, Invalid

Where = dict[str, Any]

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)|(?P<word>[A-Za-z_]\w*)|(?P<sign>[=(),]))"
)


def check_where(value: object) -> Where:
    """The map form of a filter, from a map or from the older string form. Raises Invalid."""
    if isinstance(value, str):
        return _Reader(value).read()
    if not isinstance(value, dict) or not value:
        raise Invalid([Fault("where", "must be a map of column to value or list of values")])
    given = cast("dict[object, object]", value)
    return {str(key): _checked(str(key), item) for key, item in given.items()}


def _checked(column: str, value: Any) -> Any:
    if not _COLUMN.fullmatch(column):
        raise Invalid([Fault(f"where.{column}", "is not a column name")])
    items = cast("list[object]", value if isinstance(value, list) else [value])
    if not items or not all(isinstance(item, str | int | float | bool) for item in items):
        raise Invalid([Fault(f"where.{column}", "must be a text, number, boolean or list of them")])
    return cast("object", value)


class _Reader:
    """Reads `a = 'x' AND b IN (1, 2)` and nothing wider."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> Where:
        found: Where = {}
        while True:
            column = self._take("word", "a column name")
            if column in found:
                self._refuse(f"column {column!r} is named twice")
            found[column] = self._comparison()
            if not self.text[self.at :].strip():
                return found
            if self._take("word", "AND").upper() != "AND":
                self._refuse("only AND joins conditions")

    def _comparison(self) -> object:
        match = self._next()
        if match and match["sign"] == "=":
            return self._literal()
        if match and (match["word"] or "").upper() == "IN":
            return self._list()
        return self._refuse("expected = or IN")

    def _list(self) -> list[object]:
        self._sign("(")
        items = [self._literal()]
        while (match := self._next()) and match["sign"] == ",":
            items.append(self._literal())
        if not match or match["sign"] != ")":
            self._refuse("expected , or )")
        return items

    def _literal(self) -> object:
        match = self._next()
        if match and match["text"]:
            return match["text"][1:-1].replace("''", "'")
        if match and match["number"]:
            return float(match["number"]) if "." in match["number"] else int(match["number"])
        if match and (match["word"] or "").lower() in ("true", "false"):
            return match["word"].lower() == "true"
        return self._refuse("expected a quoted text, a number, true or false")

    def _sign(self, sign: str) -> None:
        match = self._next()
        if not match or match["sign"] != sign:
            self._refuse(f"expected {sign}")

    def _take(self, group: str, what: str) -> str:
        match = self._next()
        if match and match[group]:
            return match[group]
        return self._refuse(f"expected {what}")

    def _next(self) -> re.Match[str] | None:
        rest = self.text[self.at :]
        self.last = self.at + len(rest) - len(rest.lstrip())
        match = _TOKEN.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _refuse(self, message: str) -> Any:
        rest = self.text[self.last :].strip() or "the end"
        raise Invalid(
            [
                Fault(
                    "where", f"{message} at position {self.last + 1}, near {rest[:30]!r}; use a map"
                )
            ]
        )
