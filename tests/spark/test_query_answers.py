"""Answers of the Query Service compared with Spark SQL on the same files."""

from pathlib import Path

from pyspark.sql import SparkSession

from support.services.dispatcher import Secrets
from support.services.postgres import Templates
from support.services.query import opened_warehouse
from support.sql.generated_selects import EVENTS_DAG, commit_events, make_selects, read_rows

SELECTS = 30


def test_generated_queries_answer_like_spark_sql(
    spark: SparkSession, secrets: Secrets, templates: Templates, tmp_path: Path
) -> None:
    with opened_warehouse(secrets, templates, tmp_path, EVENTS_DAG) as reading:
        files = commit_events(reading.warehouse)
        spark.read.parquet(*map(str, files)).createOrReplaceTempView("events")
        not_empty = 0
        with reading.query.client() as http:
            for sql in make_selects(2, SELECTS, "events"):
                _, rows = read_rows(http, sql)
                assert rows == [tuple(row) for row in spark.sql(sql).collect()], sql
                not_empty += bool(rows)
    spark.catalog.dropTempView("events")
    assert not_empty > SELECTS // 2
