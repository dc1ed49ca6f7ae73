"""Make a file of preloaded and linked classes, which halves the time and CPU of a Spark start.

Java 25 and newer read such a file (`-XX:AOTCache`). It is valid for one Java, one set of jars and
one set of flags; its name contains a hash of them. It is stored in the same Python environment as the
jars. A JVM that cannot use the file logs this and starts without it.
"""

import subprocess
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from trace_etl.objects.file_store import FileStore
from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session import jvm
from trace_etl.spark.session.classic_engine import ClassicEngine
from trace_etl.spark.session.warm_session import WarmSession
from trace_etl.spark.session.warmup import plan_read, warm_up
from trace_etl.spark.settings import SparkSettings

_DUMP_SECONDS = 600.0  # a busy machine is slow
_ROWS = 2000
_SAMPLE_QUERIES = (
    "SELECT sum(id), count(DISTINCT id % 7), id % 10 AS rest FROM {t} GROUP BY rest",
    "SELECT a.id, b.name FROM {t} a JOIN {t} b ON a.id = b.id + 1 ORDER BY b.name LIMIT 10",
    "SELECT id, row_number() OVER (PARTITION BY id % 3 ORDER BY name) AS n FROM {t}",
    "SELECT upper(name), cast(id AS decimal(38, 0)), date_trunc('day', at) FROM {t} WHERE id > 5",
)


def make_class_cache(java_home: Path | None) -> Path | None:
    """Make the cache of this Java if it is missing. Return None if this Java supports none.

    Takes about a minute of CPU time. Raises SparkNotStarted.
    """
    home = java_home or jvm.wheel_java_home()
    path = jvm.class_cache(home)
    if path is None or path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as scratch:
        directory = Path(scratch)
        recorded, draft = directory / "recorded", directory / path.name
        _record_classes(home, directory, recorded)
        _assemble_cache(home, directory, recorded, draft)
        draft.rename(path)
    for old in set(path.parent.glob(f"*{path.suffix}")) - {path}:
        old.unlink(missing_ok=True)  # made for other jars or another Java
    return path


def _record_classes(home: Path, directory: Path, recorded: Path) -> None:
    """Run Spark once, as a worker would, with a JVM that records the classes it loads."""
    flags = ("-XX:AOTMode=record", f"-XX:AOTConfiguration={recorded}")
    settings = SparkSettings(
        FileStore(directory / "objects"), directory / "spark", java_home=home, java_flags=flags
    )
    session = WarmSession(settings)
    try:
        spark = session.get()
        warm_up(spark, settings)
        plan_read(spark, session.engine)
        _run_sample_queries(spark, directory / "table")
        assert isinstance(session.engine, ClassicEngine) and session.engine.jvm is not None
        session.engine.jvm.stop(_DUMP_SECONDS)  # the JVM writes the recording at exit
    finally:
        session.close()
    if not recorded.is_file():
        raise SparkNotStarted(
            f"the JVM in {home} recorded no classes for its cache; check that it is Java 25 or newer"
        )


def _run_sample_queries(spark: SparkSession, path: Path) -> None:
    rows = spark.range(_ROWS).selectExpr(
        "id", "concat('n', id) AS name", "current_timestamp() AS at"
    )
    rows.write.parquet(str(path))
    spark.read.parquet(str(path)).createOrReplaceTempView("sample")
    for query in _SAMPLE_QUERIES:
        spark.sql(query.format(t="sample")).toArrow()


def _assemble_cache(home: Path, directory: Path, recorded: Path, draft: Path) -> None:
    flags = ("-XX:AOTMode=create", f"-XX:AOTConfiguration={recorded}", f"-XX:AOTCache={draft}")
    result = subprocess.run(
        jvm.build_command(home, memory="1g", scratch=directory, flags=flags, main=()),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode or not draft.is_file():
        output = (result.stderr or result.stdout).strip().splitlines()[-1:] or ["no output"]
        raise SparkNotStarted(f"the JVM in {home} made no class cache: {output[0]}")
