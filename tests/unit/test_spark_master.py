"""The Spark settings that each kind of master gets, without starting Spark."""

from pathlib import Path

import pytest

from trace_etl.objects.file_store import FileStore
from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.conf import heap_within, spark_conf
from trace_etl.spark.session.scratch import Scratch
from trace_etl.spark.settings import SparkSettings


def _conf(tmp_path: Path, master: str, **conf: str) -> dict[str, str]:
    settings = SparkSettings(FileStore(tmp_path), tmp_path, master=master, spark_conf=conf)
    return spark_conf(settings, Scratch(tmp_path, tmp_path / "sockets"))


def test_a_local_master_binds_to_the_loopback_address(tmp_path: Path) -> None:
    conf = _conf(tmp_path, "local[2]")
    assert conf["spark.driver.host"] == "127.0.0.1" and conf["spark.authenticate"] == "true"


def test_a_cluster_keeps_its_own_addresses_secrets_and_directories(tmp_path: Path) -> None:
    conf = _conf(tmp_path, "spark://10.0.0.5:7077", **{"spark.driver.host": "10.0.0.9"})
    assert conf["spark.master"] == "spark://10.0.0.5:7077"
    assert conf["spark.driver.host"] == "10.0.0.9"
    ours = ("authenticate", "local.dir", "socket", "bindAddress")
    assert not [name for name in conf if any(part in name for part in ours)]


@pytest.mark.parametrize("master", ["local[2]", "spark://10.0.0.5:7077"])
def test_every_master_schedules_fairly_and_disables_sql_on_files(
    tmp_path: Path, master: str
) -> None:
    conf = _conf(tmp_path, master)
    assert conf["spark.scheduler.mode"] == "FAIR"
    assert conf["spark.sql.runSQLOnFiles"] == "false"


@pytest.mark.parametrize(
    ("limit", "master", "heap"),
    [
        ("1792m", "local[2]", "512m"),
        ("4g", "local[2]", "2816m"),
        ("4g", "local[6]", "1792m"),
        ("4G", "spark://10.0.0.5:7077", "3328m"),
    ],
)
def test_the_heap_is_the_part_of_the_memory_limit_that_remains(
    limit: str, master: str, heap: str
) -> None:
    assert heap_within(limit, master) == heap


def test_a_limit_that_leaves_no_heap_is_refused_with_the_minimum() -> None:
    with pytest.raises(SparkNotStarted, match=r"1791m is too small; .* needs at least 1792m"):
        heap_within("1791m", "local[2]")
    with pytest.raises(SparkNotStarted, match="not a size"):
        heap_within("plenty", "local[2]")
