"""The table of column types: each form is complete and translates back to the same type."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from trace_etl.dag.column_types import (
    BY_SPARK,
    COLUMN_TYPES,
    DECLARED,
    appended_form,
    buffered_form,
    holds_without_loss,
    parse_type,
)
from trace_etl.data.columns import arrow_type, declared_arrow_type, postgres_type
from trace_etl.query.sql.duckdb_types import duckdb_type

_SCALARS = [kind for kind in COLUMN_TYPES if kind.name not in ("decimal", "json")]


def test_every_type_of_a_dag_file_is_in_the_table():
    assert set(DECLARED) <= {kind.name for kind in COLUMN_TYPES}


@pytest.mark.parametrize("kind", _SCALARS, ids=lambda kind: kind.name)
def test_the_spark_form_equals_sparks_conversion_of_the_arrow_form(kind):
    schema = pa.schema([("c", declared_arrow_type(kind.name))])
    [field] = from_arrow_schema(schema, prefer_timestamp_ntz=True).fields
    assert field.dataType.simpleString() == kind.spark
    assert BY_SPARK[field.dataType.typeName()] is kind


@pytest.mark.parametrize("kind", _SCALARS, ids=lambda kind: kind.name)
def test_the_arrow_form_is_the_text_of_an_arrow_type(kind):
    assert str(declared_arrow_type(kind.name)) == kind.arrow


@pytest.mark.parametrize("kind", [k for k in _SCALARS if k.postgres], ids=lambda kind: kind.name)
def test_a_type_survives_a_round_trip_through_postgres(kind):
    assert postgres_type(declared_arrow_type(kind.name)) == kind.postgres
    assert str(arrow_type(kind.postgres)) == kind.arrow


def test_buffered_datasets_hold_the_types_that_json_carries():
    stored = {name: form.kind.name for name in BY_SPARK if (form := buffered_form(name))}
    assert stored == {
        "boolean": "boolean",
        **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer"), "long"),
        **dict.fromkeys(("long", "bigint"), "long"),
        **dict.fromkeys(("float", "double"), "double"),
        **{name: name for name in ("string", "binary", "date", "timestamp", "json")},
    }
    assert buffered_form("decimal") is None
    assert buffered_form("array<int>").spark == "array<bigint>"
    assert buffered_form("decimal(38,18)").spark == "decimal(38,18)"


@pytest.mark.parametrize(
    "name",
    [
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(0,0)",
        "array<array<int>>",
        "array<json>",
        "array<>",
    ],
)
def test_a_type_that_cannot_exist_is_none(name):
    assert parse_type(name) is None


def test_append_widens_only_what_postgres_does_not_have():
    widened = {kind.name for kind in COLUMN_TYPES if appended_form(kind.name) is not kind}
    assert widened == {"byte"}
    assert appended_form("byte") is BY_SPARK["short"]
    assert appended_form("map") is None


def test_a_declared_type_holds_its_own_and_narrower_types():
    accepted = {
        declared: {k.name for k in COLUMN_TYPES if holds_without_loss(declared, k.name)}
        for declared in ("boolean", "int", "long", "double", "string", "binary", "json")
    }
    assert accepted == {
        "boolean": {"boolean"},
        "int": {"byte", "short", "int"},
        "long": {"byte", "short", "int", "long"},
        "double": {"byte", "short", "int", "float", "double"},
        "string": {"string"},
        "binary": {"binary"},
        "json": {"string"},
    }
    assert holds_without_loss("decimal(20,4)", "decimal(18,2)")
    assert not holds_without_loss("decimal(18,2)", "decimal(18,4)")
    assert not holds_without_loss("decimal(18,4)", "decimal(18,2)")
    assert holds_without_loss("array<long>", "array<int>")
    assert not holds_without_loss("array<int>", "array<bigint>")
    assert not holds_without_loss("array<int>", "int")


@pytest.mark.parametrize(
    ("spark", "duckdb"),
    [
        ("bigint", "BIGINT"),
        ("decimal(38,0)", "DECIMAL(38,0)"),
        ("array<decimal(9,2)>", "DECIMAL(9,2)[]"),
        ("array<array<tinyint>>", "TINYINT[][]"),
        ("struct<a:int>", "VARCHAR"),
        ("decimal", "VARCHAR"),
    ],
)
def test_duckdb_reads_arrays_and_decimals_and_everything_else_as_text(spark, duckdb):
    assert duckdb_type(spark) == duckdb
