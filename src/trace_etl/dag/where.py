"""Filters on inputs, applied when rows are read. All columns must match: a scalar with `=`, a list with `IN`."""

import re
from typing import Any, cast

from trace_etl.model.errors import Fault, Invalid

Where = dict[str, Any]

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[=(),]))"
)


def check_where(value: object) -> Where:
    """Return the map form of a filter from a map or from the older string form. Raises Invalid."""
    if isinstance(value, str):
        return _FilterParser(value).parse()
    if not isinstance(value, dict) or not value:
        raise Invalid([Fault("where", "must be a map of column to value, or to a list of values")])
    conditions = cast("dict[object, object]", value)
    return {str(key): _check_value(str(key), item) for key, item in conditions.items()}


def _check_value(column: str, value: Any) -> Any:
    if not _COLUMN.fullmatch(column):
        raise Invalid(
            [Fault(f"where.{column}", "is not a valid column name; use letters, digits and _")]
        )
    items = cast("list[object]", value if isinstance(value, list) else [value])
    if not items or not all(isinstance(item, str | int | float | bool) for item in items):
        raise Invalid(
            [Fault(f"where.{column}", "must be text, a number, a boolean or a list of these")]
        )
    return cast("object", value)


class _FilterParser:
    """Parses filters such as `a = 'x' AND b IN (1, 2)`. Other operators are refused."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> Where:
        conditions: Where = {}
        while True:
            column = self._read_token("name", "a column name")
            if column in conditions:
                self._fail(f"column {column!r} is used twice")
            conditions[column] = self._parse_comparison()
            if not self.text[self.at :].strip():
                return conditions
            if self._read_token("name", "AND").upper() != "AND":
                self._fail("conditions can be joined only with AND")

    def _parse_comparison(self) -> object:
        match = self._take_token()
        if match and match["sign"] == "=":
            return self._parse_literal()
        if match and (match["name"] or "").upper() == "IN":
            return self._parse_list()
        return self._fail("expected = or IN")

    def _parse_list(self) -> list[object]:
        self._expect("(")
        items = [self._parse_literal()]
        while (match := self._take_token()) and match["sign"] == ",":
            items.append(self._parse_literal())
        if not match or match["sign"] != ")":
            self._fail("expected , or )")
        return items

    def _parse_literal(self) -> object:
        match = self._take_token()
        if match and match["text"]:
            return match["text"][1:-1].replace("''", "'")
        if match and match["number"]:
            return float(match["number"]) if "." in match["number"] else int(match["number"])
        if match and (match["name"] or "").lower() in ("true", "false"):
            return match["name"].lower() == "true"
        return self._fail("expected text in quotes, a number, true or false")

    def _expect(self, sign: str) -> None:
        match = self._take_token()
        if not match or match["sign"] != sign:
            self._fail(f"expected {sign}")

    def _read_token(self, group: str, expected: str) -> str:
        match = self._take_token()
        if match and match[group]:
            return match[group]
        return self._fail(f"expected {expected}")

    def _take_token(self) -> re.Match[str] | None:
        rest = self.text[self.at :]
        self.last = self.at + len(rest) - len(rest.lstrip())
        match = _TOKEN.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _fail(self, message: str) -> Any:
        rest = self.text[self.last :].strip() or "the end"
        raise Invalid(
            [
                Fault(
                    "where",
                    f"{message} at position {self.last + 1}, near {rest[:30]!r}; write the filter as a map",
                )
            ]
        )
