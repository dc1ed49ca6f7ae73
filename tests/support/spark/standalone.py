"""A real standalone Spark cluster from PySpark's jars: one master, one worker, loopback only."""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from support.waiting import eventually
from trace_etl.spark.session import jvm

_SECRET = "loopback-only"
# Spark's default logging prints the lines that the tests wait for; Trace's logging omits them.
LOGGING = "-Dlog4j2.configurationFile=org/apache/spark/log4j2-defaults.properties"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.authenticate.secret": _SECRET,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}


@contextmanager
def standalone_cluster(scratch: Path, *, executors: int) -> Generator[str]:
    """Run a cluster with room for some executors. Yields the master's URL once its worker is registered."""
    home = _java_home(scratch)
    with ExitStack() as stack:
        master = "org.apache.spark.deploy.master.Master"
        log = stack.enter_context(
            _daemon(home, scratch / "master", master, "--port", "0", "--webui-port", "0")
        )
        url = wait_for_log(log, r"Starting Spark master at (spark://\S+)", 1)[0]
        worker = "org.apache.spark.deploy.worker.Worker"
        room = ("--cores", str(executors), "--memory", f"{executors * 600}m")
        stack.enter_context(
            _daemon(home, scratch / "worker", worker, *room, "--webui-port", "0", url)
        )
        wait_for_log(log, r"Registering worker (\S+)", 1)
        yield url


def _java_home(scratch: Path) -> Path:
    """Wrap the wheel's Java in a script that drops a module which it lacks but Spark workers request."""
    home, real = scratch / "java", jvm.wheel_java_home()
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/bash\n"
        "args=()\n"
        'for one in "$@"; do\n'
        '  [[ $one == --add-modules=jdk.incubator.vector ]] || args+=("$one")\n'
        "done\n"
        f'exec "{real}/bin/java" "${{args[@]}}"\n'
    )
    script.chmod(0o755)
    (home / "release").write_bytes((real / "release").read_bytes())
    return home


@contextmanager
def _daemon(home: Path, place: Path, main: str, *options: str) -> Generator[Path]:
    place.mkdir(parents=True)
    spark = Path(pyspark.__file__).parent
    log = place / "log"
    command = jvm.build_command(
        jvm.wheel_java_home(),
        memory="256m",
        scratch=place,
        flags=[f"-D{name}={SETTINGS[name]}" for name in SETTINGS if "authenticate" in name],
        main=(LOGGING, main, "--host", "127.0.0.1", *options),
    )
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "JAVA_HOME": str(home),
                "SPARK_HOME": str(spark),
                "SPARK_ENV_LOADED": "1",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SCALA_VERSION": "2.13",
                "SPARK_WORKER_DIR": str(place / "work"),
                "SPARK_LOCAL_DIRS": str(place / "local"),
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=out,
            stderr=out,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(120)


def wait_for_log(log: Path, pattern: str, count: int) -> list[str]:
    """Wait until a log contains `count` matches of the pattern. Returns them."""

    def found() -> list[str]:
        matches = re.findall(pattern, log.read_text(errors="replace"))
        return matches if len(matches) >= count else []

    try:
        return eventually(found, pattern)
    except AssertionError as error:
        error.add_note(log.read_text(errors="replace")[-3000:])
        raise
