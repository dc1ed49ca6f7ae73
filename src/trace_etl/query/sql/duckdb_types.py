"""Translate column types from Spark, as markers record them, to DuckDB."""

import re

from trace_etl.dag.column_types import BY_SPARK

_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_ARRAY = re.compile(r"array<(.+)>")


def duckdb_type(spark_type: str) -> str:
    """Return the DuckDB type of a Spark type; VARCHAR if DuckDB has no equivalent here."""
    name = spark_type.strip().lower()
    if decimal := _DECIMAL.fullmatch(name):
        return f"DECIMAL({decimal[1]},{decimal[2]})"
    if array := _ARRAY.fullmatch(name):
        return f"{duckdb_type(array[1])}[]"
    if name in BY_SPARK and name != "decimal":
        return BY_SPARK[name].duckdb
    return "VARCHAR"
