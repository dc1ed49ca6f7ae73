"""What a JVM loads and links while Spark starts, kept in a file: half the wait and half the work.

Java 25 and newer read such a file (`-XX:AOTCache`). It is good for one Java, one set of jars and
one set of flags, all of which its name stands for, and it lies in the Python environment that the
jars belong to. A JVM that cannot use it after all says so in its log and starts as without.
"""

import subprocess
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from trace_etl.spark.errors import SparkNotStarted
from trace_etl.spark.session import jvm
from trace_etl.spark.session.classic_engine import ClassicEngine
from trace_etl.spark.session.warm_session import WarmSession
from trace_etl.spark.session.warmup import warm_up
from trace_etl.spark.settings import SparkSettings

_DUMP_SECONDS = 120.0
_ROWS = 2000
_EXERCISES = (
    "SELECT sum(id), count(DISTINCT id % 7), id % 10 AS rest FROM {t} GROUP BY rest",
    "SELECT a.id, b.name FROM {t} a JOIN {t} b ON a.id = b.id + 1 ORDER BY b.name LIMIT 10",
    "SELECT id, row_number() OVER (PARTITION BY id % 3 ORDER BY name) AS n FROM {t}",
    "SELECT upper(name), cast(id AS decimal(38, 0)), date_trunc('day', at) FROM {t} WHERE id > 5",
)


def make_class_cache(java_home: Path | None) -> Path | None:
    """The cache of this Java, made unless it is there; None if this Java knows none.

    Takes about a minute of processor time. Raises SparkNotStarted.
    """
    home = java_home or jvm.wheel_java_home()
    path = jvm.class_cache(home)
    if path is None or path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as made:
        directory = Path(made)
        recorded, draft = directory / "recorded", directory / path.name
        _record(home, directory, recorded)
        _assemble(home, directory, recorded, draft)
        draft.rename(path)
    for old in set(path.parent.glob(f"*{path.suffix}")) - {path}:
        old.unlink(missing_ok=True)  # of jars or a Java that are gone
    return path


def _record(home: Path, directory: Path, recorded: Path) -> None:
    """Run Spark once, as a worker would, with a JVM that notes down what it needs."""
    flags = ("-XX:AOTMode=record", f"-XX:AOTConfiguration={recorded}")
    settings = SparkSettings(
        directory / "objects", directory / "spark", java_home=home, java_flags=flags
    )
    session = WarmSession(settings)
    try:
        spark = session.get()
        warm_up(spark, session.engine, settings)
        _exercise(spark, directory / "table")
        assert isinstance(session.engine, ClassicEngine) and session.engine.jvm is not None
        session.engine.jvm.stop(_DUMP_SECONDS)  # it writes as it ends
    finally:
        session.close()
    if not recorded.is_file():
        raise SparkNotStarted(f"the JVM in {home} recorded nothing for its cache")


def _exercise(spark: SparkSession, place: Path) -> None:
    rows = spark.range(_ROWS).selectExpr(
        "id", "concat('n', id) AS name", "current_timestamp() AS at"
    )
    rows.write.parquet(str(place))
    spark.read.parquet(str(place)).createOrReplaceTempView("exercise")
    for query in _EXERCISES:
        spark.sql(query.format(t="exercise")).toArrow()


def _assemble(home: Path, directory: Path, recorded: Path, draft: Path) -> None:
    flags = ("-XX:AOTMode=create", f"-XX:AOTConfiguration={recorded}", f"-XX:AOTCache={draft}")
    done = subprocess.run(
        jvm.command(home, memory="1g", scratch=directory, flags=flags, main=()),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not draft.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise SparkNotStarted(f"the JVM in {home} made no cache: {said[0]}")
