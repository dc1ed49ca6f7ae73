"""A real Spark Connect server from PySpark's jars, running locally, on loopback only."""

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from support.spark.standalone import LOGGING, wait_for_log
from trace_etl.spark.session import jvm

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
_TOKEN = "loopback-only"
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.authenticate.token": _TOKEN,
}


class ConnectServer:
    """One server at a time. A replacement listens on the same port."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._port = "0"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"sc://localhost:{self._port}/;token={_TOKEN}"

    def start(self) -> None:
        """Start a server and wait until it listens."""
        scratch = self._scratch / str(time.monotonic_ns())
        scratch.mkdir(parents=True)
        log = scratch / "log"
        conf = {
            **_SETTINGS,
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.connect.grpc.binding.port": self._port,
        }
        command = jvm.build_command(
            jvm.wheel_java_home(),
            memory="768m",
            scratch=scratch,
            flags=[f"-D{name}={value}" for name, value in conf.items()],
            main=(LOGGING, _MAIN),
        )
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "SPARK_HOME": str(Path(pyspark.__file__).parent),
                    "SPARK_ENV_LOADED": "1",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "PYSPARK_PYTHON": sys.executable,
                },
                cwd=scratch,
                stdout=out,
                stderr=out,
            )
        [self._port] = wait_for_log(log, r"Spark Connect server started at: \S+:(\d+)", 1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)
            self._process = None


@contextmanager
def connect_server(scratch: Path) -> Generator[ConnectServer]:
    server = ConnectServer(scratch)
    try:
        server.start()
        yield server
    finally:
        server.stop()
