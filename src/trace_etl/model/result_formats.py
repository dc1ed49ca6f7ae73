"""The formats in which the Query Service sends the result of a query."""

from enum import StrEnum


class ResultFormat(StrEnum):
    JSON = "json"
    ARROW = "arrow"
    """An Arrow IPC stream."""
    PARQUET = "parquet"
    CSV = "csv"
    COLUMNS = "columns"
    """For `trace_etl.client`: stored columns if they are the whole result, else an Arrow IPC stream."""


MEDIA_TYPES = {
    ResultFormat.JSON: "application/json",
    ResultFormat.ARROW: "application/vnd.apache.arrow.stream",
    ResultFormat.PARQUET: "application/vnd.apache.parquet",
    ResultFormat.CSV: "text/csv; charset=utf-8; header=present",
    ResultFormat.COLUMNS: "application/octet-stream",
}
