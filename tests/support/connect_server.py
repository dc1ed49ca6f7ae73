"""A real Spark Connect server from PySpark's jars, running locally, on loopback only."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from support.standalone import LOGGING, wait_for_log
from trace_etl.spark.session import jvm

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
_TOKEN = "loopback-only"
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.connect.authenticate.token": _TOKEN,
}


@contextmanager
def connect_server(scratch: Path, **more: str) -> Generator[str]:
    """Run a server. Yields its address once it listens."""
    with server_process(scratch, more) as (url, _):
        yield url


@contextmanager
def server_process(
    scratch: Path, more: Mapping[str, str]
) -> Generator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Run a server. Yields its address and its process, so that a test can kill it."""
    scratch.mkdir(parents=True)
    log, spark = scratch / "log", Path(pyspark.__file__).parent
    conf = {
        **_SETTINGS,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **more,
    }
    command = jvm.build_command(
        jvm.wheel_java_home(),
        memory="768m",
        scratch=scratch,
        flags=[f"-D{name}={value}" for name, value in conf.items()],
        main=(LOGGING, _MAIN),
    )
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "SPARK_HOME": str(spark),
                "SPARK_ENV_LOADED": "1",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "PYSPARK_PYTHON": sys.executable,
            },
            cwd=scratch,
            stdout=out,
            stderr=out,
        )
    try:
        [port] = wait_for_log(log, r"Spark Connect server started at: \S+:(\d+)", 1)
        yield f"sc://localhost:{port}/;token={_TOKEN}", process
    finally:
        process.kill()
        process.wait(30)
