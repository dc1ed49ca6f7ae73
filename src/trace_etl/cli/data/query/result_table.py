"""Print the rows of a query as a table that fits the terminal."""

from typing import Any

from trace_etl.cli.output import print_rows

_NUMBER_TYPES = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")


def print_result(answer: dict[str, Any]) -> None:
    """Print the rows, with numbers on the right."""
    columns: list[dict[str, str]] = answer["columns"]
    numbers = [c["name"] for c in columns if any(name in c["type"] for name in _NUMBER_TYPES)]
    print_rows([column["name"] for column in columns], answer["rows"], right=numbers)
