"""Column types as markers record them (Spark's words), in DuckDB's words."""

import re

_PLAIN = {
    "tinyint": "TINYINT",
    "byte": "TINYINT",
    "smallint": "SMALLINT",
    "short": "SMALLINT",
    "int": "INTEGER",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_ARRAY = re.compile(r"array<(.+)>")


def duckdb_type(spark_type: str) -> str:
    """The same type for DuckDB; text for what has no counterpart here."""
    word = spark_type.strip().lower()
    if word in _PLAIN:
        return _PLAIN[word]
    if decimal := _DECIMAL.fullmatch(word):
        return f"DECIMAL({decimal[1]},{decimal[2]})"
    if array := _ARRAY.fullmatch(word):
        return f"{duckdb_type(array[1])}[]"
    return "VARCHAR"
