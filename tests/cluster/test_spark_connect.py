"""The same DAG through a real Spark Connect server and on local threads."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.chain.chain_rows import expected
from support.data.hot_tables import HotTables, InputSpec
from support.script_process import ScriptProcess, script_process
from support.spark.connect_server import ConnectServer, connect_server
from support.spark.dag_outputs import Outputs, files_of, run_outputs
from trace_etl.devtools.devchain import DevChain

_TESTS = str(Path(__file__).parents[1])
PRELUDE = """
import sys, threading
from pathlib import Path
from support.spark.spark_tasks import as_input, ingest, rows, select
from support.waiting import eventually
from trace_etl.spark.errors import *
from trace_etl.spark.runner import SparkRunner
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.settings import SparkSettings

root, url, rpc = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def made(**more):
    return SparkRunner(
        SparkSettings(
            FileStore(root / "objects"), root / "spark", master=url, rpc_pools={"default": (rpc,)}, **more
        )
    )

def refusal(runner, sql, *inputs):
    try:
        runner.run(select(sql, *inputs))
    except BadSql as error:
        return str(error)
    raise AssertionError(f"{sql} ran")
"""
HOME = "('java.lang.System', 'getProperty', 'user.home') AS b"
SET = "('java.lang.System', 'setProperty', 'trace.test', 'called') AS b"
SCRIPT = "(SELECT TRANSFORM(1) USING 'echo hello' AS (a))"
DISGUISED = {
    "calls Java": [
        f"SELECT '\n== x' AS a, reflect{HOME}",
        f"SELECT r'\\' AS a, REFLECT -- '\n {HOME}",
        f"SELECT '\n== Optimized Logical Plan ==\n' AS a, `try_reflect`{HOME}",
        f"SELECT 1 AS `\n== x`, system.builtin.java_method /* ( */ {HOME}",
        f"FROM range(3) |> SELECT reflect{HOME}",
        f"SELECT {', '.join(f'id + {n} AS c{n}' for n in range(200))}, reflect{HOME} FROM range(1)",
        f"SELECT /*+ BROADCAST(t) */ * FROM range(1) t CROSS JOIN (SELECT java_method{HOME})",
        f"SELECT reflect{SET} FROM VALUES (1), (2)",  # the optimiser would call this one
        "SELECT from_xml('<a/>', 'a int', map('rowValidationXSDPath', '/etc/passwd')) AS a",
    ],
    "write the name itself": [f"SELECT IDENTIFIER('ref' || 'lect'){SET} FROM VALUES (1), (2)"],
    "runs a program": [
        f"SELECT a FROM {SCRIPT} WHERE '\n== x' <> a",
        "SELECT a FROM (MAP 1 USING /* ' */ 'echo hello' AS (a)) WHERE '\n== x' <> a",
        "SELECT '\n== x' AS y, (SELECT max(a) FROM (REDUCE 1 USING--\n'cat' AS (a))) AS x",
        f"WITH t AS {SCRIPT} SELECT '\n== x' AS b, * FROM t",
    ],
    "is not an input": [
        "SELECT '\n== x' AS a, x FROM secret",
        "SELECT '\n== x' AS a, (SELECT max(x) FROM secret) AS b",
        "SELECT '\n== x' AS a, * FROM spark_catalog.default.secret",
        "SELECT '\n== x' AS a, y FROM seen",
        "SELECT '\n== x' AS a, value FROM text.`/etc/passwd`",
        "WITH t AS (TABLE secret) SELECT /* '\n== x' */ '\n== x' AS a, x AS `c.d` FROM t",
    ],
}


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def server(connect: ConnectServer) -> str:
    return connect.url


@pytest.fixture(scope="module")
def client() -> Generator[ScriptProcess]:
    """A worker process. A process uses either Spark Connect or a JVM, never both."""
    with script_process(PRELUDE) as process:
        yield process


@pytest.fixture(scope="module")
def remote(
    connect: ConnectServer,
    rpc_url: str,
    tables: HotTables,
    where: InputSpec,
    tmp_path_factory: pytest.TempPathFactory,
) -> Outputs:
    return run_outputs(connect.url, tmp_path_factory.mktemp("remote"), rpc_url, {}, tables, where)


def test_the_quickstart_gives_the_same_bytes_through_spark_connect(
    local: Outputs, remote: Outputs
) -> None:
    assert local.quickstart.keys() == remote.quickstart.keys() and len(local.quickstart) == 12
    for name, place in local.quickstart.items():
        assert files_of(place) == files_of(remote.quickstart[name]), name


def test_a_task_reads_the_same_hot_tables_through_spark_connect(
    chain: DevChain, tables: HotTables, local: Outputs, remote: Outputs
) -> None:
    logs = expected(chain, 5, 20)["logs"]
    wanted = [log for log in logs if log["address"] == logs[0]["address"]]
    for name, place in local.hot.items():
        assert files_of(place) == files_of(remote.hot[name]), name
    found = {name: pq.read_table(place).to_pylist() for name, place in remote.hot.items()}
    assert 0 < len(wanted) < len(logs) and found["filtered"] == wanted
    assert found["newer"] == expected(chain, 31, 33)["blocks"]
    assert found["buffered"] == [{"id": "bob", "n": 2}, {"id": "cid", "n": None}]
    assert [row["block_number"] for row in found["read_appended"]] == [3, 4, 5]
    assert found["decoded"] and {row["token"] for row in found["decoded"]} > {logs[0]["address"]}
    physical = remote.plan.partition("== Physical Plan ==")[2]
    reads = physical.split("BatchScan")[0]
    assert "BatchScan hot" in physical and "Filter" not in reads, remote.plan
    assert tables.dsn not in remote.plan


def test_the_tests_of_the_operators_pass_through_spark_connect(server: str) -> None:
    names = ("table_operators", "decode_operators", "data_checks")
    files = [f"{_TESTS}/spark/test_{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", *files],
        env={
            **os.environ,
            "TRACE_TEST_MASTER": server,
            "PYTHONPATH": os.pathsep.join([_TESTS, *filter(None, sys.path)]),
        },
        cwd=Path(_TESTS).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_a_select_through_spark_connect_can_read_only_its_inputs(
    tmp_path: Path, server: str, rpc_url: str, client: ScriptProcess
) -> None:
    output = client.run(
        """
        import json
        runner = made()
        runner.warm()
        blocks = ingest(0, 9)
        runner.run(blocks)
        given = as_input(blocks, name="blocks")
        spark = runner.session.get()
        spark.sql("CREATE TABLE IF NOT EXISTS secret (x INT) USING parquet")
        print(json.dumps({
            "command": refusal(runner, "DROP TABLE secret"),
            "setting": refusal(runner, "SET spark.sql.runSQLOnFiles=true"),
            "insert": refusal(runner, "INSERT INTO secret VALUES (1)"),
            "way out": refusal(runner, "SELECT 1) SELECT * FROM q_; DROP TABLE secret; --"),
            "two": refusal(runner, "SELECT 1; DROP TABLE secret"),
            "as a name": refusal(runner, "SHOW TABLES", {**given, "name": "show"}),
            "table": refusal(runner, "SELECT * FROM secret", given),
            "hidden table": refusal(
                runner, "WITH a AS (SELECT 1) SELECT (SELECT max(x) FROM secret) AS x FROM a"
            ),
            "file": refusal(runner, f"SELECT * FROM parquet.`{root}`"),
            "java": refusal(
                runner, "SELECT builtin.reflect('java.lang.System', 'getProperty', 'a') AS x"
            ),
            "program": refusal(runner, "SELECT TRANSFORM(1) USING 'cat'"),
            "column": refusal(runner, "SELECT nothing FROM blocks", given),
        }))
        assert spark.catalog.tableExists("secret") and not spark.table("secret").count()
        ordered = select("WITH b AS (SELECT * FROM blocks) SELECT block_number FROM b "
                         "ORDER BY block_number DESC", given)
        runner.run(ordered)
        found = [row["block_number"] for row in rows(root / "objects", ordered, "answer")]
        assert found == list(range(9, -1, -1)), found
        runner.close()
        """,
        tmp_path,
        server,
        rpc_url,
    )
    messages = json.loads(output.splitlines()[-1])
    for name in ("command", "setting", "insert", "way out", "two", "as a name", "program"):
        assert "not one SELECT" in messages[name], messages[name]
    for name in ("table", "hidden table"):
        assert "secret is not an input" in messages[name]
    assert "reflect is not allowed" in messages["java"]
    assert "`nothing`" in messages["column"] and "(inputs: blocks)" in messages["column"]
    assert messages["file"]


def test_the_sql_guard_sees_through_literals_comments_and_names(
    tmp_path: Path, server: str, rpc_url: str, client: ScriptProcess
) -> None:
    output = client.run(
        """
        import json
        runner = made(spark_conf={"spark.sql.runSQLOnFiles": "true"})
        spark = runner.session.get()
        spark.sql("CREATE TABLE IF NOT EXISTS secret (x INT) USING parquet")
        spark.sql("CREATE OR REPLACE VIEW seen AS SELECT x AS y FROM secret")

        given = json.loads(sys.argv[4])
        found = {why: [refusal(runner, sql) for sql in some] for why, some in given.items()}
        called = spark.sql("SELECT reflect('java.lang.System', 'getProperty', 'trace.test') AS x")
        print(json.dumps([found, called.collect()[0].x]))
        harmless = "SELECT '\\n== x' AS a, transform(array(1), x -> x)[0] AS b -- we reflect it"
        runner.run(select(harmless))
        runner.run(select("SELECT " + ", ".join(f"id + {n} AS c{n}" for n in range(60)) + " FROM range(1)"))
        runner.close()
        """,
        tmp_path,
        server,
        rpc_url,
        json.dumps(DISGUISED),
    )
    found, called = json.loads(output.splitlines()[-1])
    assert called in (None, "null")
    for why, messages in found.items():
        assert [one for one in messages if why not in one] == []


def test_a_discarded_session_is_closed_at_the_server(
    tmp_path: Path, server: str, rpc_url: str, client: ScriptProcess
) -> None:
    client.run(
        """
        from pyspark.errors import PySparkException
        runner = made()
        warm = runner.session
        spark = warm.get()
        try:
            with warm.lease(spark, ["v"]) as broken:
                broken.client.release_session()  # as if the server had forgotten it
        except PySparkException:
            pass
        else:
            raise AssertionError("dropping the view should have failed")
        assert broken.is_stopped and warm.get() is spark
        with warm.lease(spark, []) as late:
            newer = warm.restart()
        assert late.is_stopped
        with warm.lease(newer, []) as kept:
            pass
        assert not kept.is_stopped
        runner.close()
        """,
        tmp_path,
        server,
        rpc_url,
    )


def test_canceling_a_task_stops_only_its_jobs_at_the_server(
    tmp_path: Path, server: str, rpc_url: str, client: ScriptProcess
) -> None:
    client.run(
        """
        from concurrent.futures import ThreadPoolExecutor
        from support.chain.faulty_node import FaultyNode
        gate = threading.Event()

        def before(calls):
            gate.wait(300)

        with FaultyNode(rpc, before) as node, ThreadPoolExecutor(2) as pool:
            rpc = node.url
            runner = made()
            doomed, other = ingest(0, 9), ingest(10, 19)
            runs = [pool.submit(runner.run, task) for task in (doomed, other)]
            eventually(lambda: len(node.requests) >= 2, "both tasks call the node")
            runner.cancel(doomed.task_id)
            try:
                assert isinstance(runs[0].exception(300), TaskCanceled), runs[0]
                assert not runs[1].done()
            finally:
                gate.set()
            runs[1].result(300)
        assert len(rows(root / "objects", other, "blocks")) == 10
        answer = select("SELECT count(*) AS n FROM range(1000)")
        runner.run(answer)
        assert rows(root / "objects", answer, "answer") == [{"n": 1000}]
        runner.close()
        """,
        tmp_path,
        server,
        rpc_url,
    )


def test_a_setting_that_a_client_cannot_change_is_refused_at_the_start(
    tmp_path: Path, server: str, rpc_url: str, client: ScriptProcess
) -> None:
    output = client.run(
        """
        def message(runner):
            try:
                runner.warm()
            except SparkNotStarted as error:
                return str(error)
            finally:
                runner.close()

        print(message(made(spark_conf={"spark.executor.memory": "2g"})))
        url = "sc://localhost:1/;token=hidden"
        print(message(made()))
        """,
        tmp_path,
        server,
        rpc_url,
    ).splitlines()
    assert "client cannot set spark.executor.memory" in output[0]
    assert "no Spark Connect server answers" in output[1] and "hidden" not in output[1]


def test_a_stopped_server_fails_an_attempt_and_its_replacement_is_used(
    tmp_path: Path, connect: ConnectServer, rpc_url: str, client: ScriptProcess
) -> None:
    arguments = (tmp_path, connect.url, rpc_url)
    client.run(
        """
        sql = "SELECT count(*) AS n FROM range(1000)"
        runner = made()
        runner.run(select(sql))
        """,
        *arguments,
    )
    connect.stop()
    client.run(
        """
        try:
            runner.run(select(sql))
            raise AssertionError("the server is stopped")
        except (SparkLost, SparkNotStarted) as error:
            assert error.retryable
        """,
        *arguments,
    )
    connect.start()
    client.run(
        """
        answer = select(sql)
        runner.run(answer)
        assert rows(root / "objects", answer, "answer") == [{"n": 1000}]
        runner.close()
        """,
        *arguments,
    )
