"""Read the columns of a dataset."""

from trace_etl.api.user.data.datasets import DatasetColumn
from trace_etl.client.stack_client import RequestRejected, StackClient, quote_segment
from trace_etl.dag.column_types import COLUMN_TYPES

_BY_DUCKDB = {kind.duckdb: kind.spark for kind in COLUMN_TYPES}


def read_schema(stack: StackClient, name: str) -> list[DatasetColumn]:
    """Return the columns of a dataset: names, types and comments; empty before they are known.

    The API knows the columns of partitions and of plans, the Query Service those of tables.
    """
    answer = stack.get(f"/v1/datasets/{quote_segment(name)}", limit=1)
    columns = [DatasetColumn.model_validate(column) for column in answer["columns"]]
    return columns or _describe_table(stack, name)


def _describe_table(stack: StackClient, name: str) -> list[DatasetColumn]:
    try:
        rows = stack.query(f'DESCRIBE "{name}"')["rows"]
    except RequestRejected as error:
        if error.problem.get("code") == "no_data_yet":
            return []
        raise
    return [DatasetColumn(name=row[0], type=_find_spark_name(row[1])) for row in rows]


def _find_spark_name(kind: str) -> str:
    return (
        f"array<{_find_spark_name(kind[:-2])}>" if kind.endswith("[]") else _find_known_name(kind)
    )


def _find_known_name(kind: str) -> str:
    return _BY_DUCKDB.get(kind, kind.lower())
