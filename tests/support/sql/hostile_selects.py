"""SELECTs that try to run programs, call Java, read files or read tables that are not inputs.

`{run}` becomes a scalar subquery that starts a program, `{rows}` a query that does; both create the
file `{marker}`. `{secret}` is the path of a file. The only input is `blocks`.
"""

from collections.abc import Iterator
from pathlib import Path

_PROGRAM = "touch {marker}; cat"
_ROWS = f"SELECT TRANSFORM(1) USING '{_PROGRAM}' AS (a STRING)"
_RUN = f"(SELECT max(a) FROM ({_ROWS}))"

PLACES = """
SELECT {run} AS x FROM blocks
SELECT * FROM blocks WHERE miner = {run}
SELECT * FROM blocks WHERE NOT (miner <=> {run} AND true)
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY {run})
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (PARTITION BY {run})
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (v), v AS (ORDER BY {run})
SELECT count(*) OVER w AS n FROM blocks WINDOW v AS (PARTITION BY {run}), w AS v
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY miner IN ({rows}))
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY EXISTS ({rows}))
SELECT * FROM (SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY {run}))
FROM blocks |> SELECT count(*) OVER w AS n WINDOW w AS (ORDER BY {run})
FROM blocks |> WHERE miner = {run}
FROM blocks |> SELECT {run} AS x
FROM blocks |> EXTEND {run} AS x
FROM blocks |> SET miner = {run}
FROM blocks |> AGGREGATE max({run}) AS x
FROM blocks |> AGGREGATE count(*) AS n GROUP BY {run}
FROM blocks |> JOIN ({rows}) ON true
FROM blocks |> ORDER BY {run}
FROM blocks |> LIMIT length({run})
FROM blocks |> SELECT miner |> UNION ALL ({rows})
FROM blocks |> SELECT miner |> EXCEPT ALL ({rows})
FROM blocks |> PIVOT (max({run}) FOR miner IN ('a', 'b'))
FROM ({rows}) |> TABLESAMPLE (100 PERCENT)
FROM ({rows}) |> AS t |> DROP a
FROM blocks |> WHERE true |> SELECT count(*) OVER w AS n WINDOW w AS (PARTITION BY {run})
SELECT count(*) AS n FROM blocks HAVING max(miner) = {run}
SELECT count(*) AS n FROM blocks GROUP BY {run}
SELECT count(*) AS n FROM blocks GROUP BY ROLLUP (miner, {run})
SELECT count(*) AS n FROM blocks GROUP BY CUBE (miner, {run})
SELECT count(*) AS n FROM blocks GROUP BY GROUPING SETS ((miner), ({run}))
SELECT * FROM blocks ORDER BY {run}
SELECT * FROM blocks SORT BY {run}
SELECT * FROM blocks CLUSTER BY {run}
SELECT * FROM blocks DISTRIBUTE BY {run}
SELECT * FROM blocks LIMIT length({run})
SELECT * FROM blocks OFFSET length({run})
SELECT * FROM blocks QUALIFY row_number() OVER (ORDER BY {run}) = 1
SELECT miner FROM blocks QUALIFY count(*) OVER w = 1 WINDOW w AS (ORDER BY {run})
SELECT miner, count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY {run}) QUALIFY n = 1
SELECT b.* FROM blocks b JOIN blocks c ON b.miner = {run}
SELECT b.* FROM blocks b JOIN ({rows}) c ON b.miner = c.a
SELECT b.* FROM blocks b LEFT SEMI JOIN ({rows}) c ON b.miner = c.a
SELECT b.* FROM blocks b LEFT ANTI JOIN ({rows}) c ON b.miner = c.a
SELECT * FROM blocks NATURAL JOIN ({rows})
SELECT * FROM ({rows}) x JOIN ({rows}) y USING (a)
SELECT * FROM blocks, ({rows})
SELECT * FROM blocks, LATERAL ({rows})
SELECT * FROM blocks JOIN LATERAL (SELECT {run} AS x)
SELECT * FROM blocks LATERAL VIEW explode(array({run})) t AS x
SELECT * FROM blocks LATERAL VIEW OUTER posexplode(array({run})) t AS i, x
SELECT CASE WHEN miner = 'a' THEN {run} END AS x FROM blocks
SELECT CASE {run} WHEN 'a' THEN 1 ELSE 2 END AS x FROM blocks
SELECT if(true, {run}, 'b') AS x FROM blocks
SELECT * FROM blocks WHERE EXISTS ({rows})
SELECT * FROM blocks WHERE miner IN ({rows})
SELECT * FROM blocks WHERE miner NOT IN ({rows})
SELECT * FROM blocks WHERE (miner, 1) IN (SELECT a, 1 FROM ({rows}))
SELECT * FROM blocks WHERE miner IN ('a', {run})
WITH t AS ({rows}) SELECT * FROM t
WITH t AS (WITH u AS ({rows}) SELECT * FROM u) SELECT * FROM t
WITH t AS (SELECT 1 AS x), u AS (SELECT x, {run} AS y FROM t) SELECT * FROM u
WITH RECURSIVE t(n, m) AS (SELECT 1, {run} UNION ALL SELECT n + 1, m FROM t WHERE n < 2) SELECT * FROM t
WITH t AS (SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY {run})) SELECT * FROM t
SELECT (WITH t AS ({rows}) SELECT max(a) FROM t) AS x
SELECT miner FROM blocks UNION ALL {rows}
SELECT miner FROM blocks UNION {rows}
(SELECT miner FROM blocks) INTERSECT ({rows})
(SELECT miner FROM blocks) MINUS ({rows})
VALUES ({run})
SELECT * FROM VALUES (1, {run}) AS t(x, y)
SELECT * FROM blocks PIVOT (max({run}) FOR miner IN ('a', 'b'))
SELECT * FROM ({rows}) PIVOT (count(*) FOR a IN ('a', 'b'))
SELECT * FROM (SELECT {run} AS p, 'b' AS q) UNPIVOT (v FOR k IN (p, q))
SELECT * FROM ({rows}) TABLESAMPLE (100 PERCENT)
SELECT upper(concat('a', {run})) AS x FROM blocks
SELECT transform(array(1, 2), i -> {run}) AS x FROM blocks
SELECT aggregate(array('a'), {run}, (s, i) -> concat(s, i)) AS x FROM blocks
SELECT filter(array('a'), i -> i = {run}) AS x FROM blocks
SELECT count(*) FILTER (WHERE miner = {run}) AS n FROM blocks
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY length({run})) AS x FROM blocks
SELECT listagg(miner, ',') WITHIN GROUP (ORDER BY {run}) AS x FROM blocks
SELECT count(*) OVER (ORDER BY {run}) AS n FROM blocks
SELECT count(*) OVER (PARTITION BY {run}) AS n FROM blocks
SELECT sum(size) OVER (ORDER BY size RANGE BETWEEN length({run}) PRECEDING AND CURRENT ROW) AS n FROM blocks
SELECT count(*) OVER (w ROWS UNBOUNDED PRECEDING) AS n FROM blocks WINDOW w AS (ORDER BY {run})
SELECT named_struct('x', {run}) AS x FROM blocks
SELECT struct({run}, 1) AS x FROM blocks
SELECT ({run}, 1) AS x FROM blocks
SELECT array({run}) AS x FROM blocks
SELECT map('k', {run})['k'] AS x FROM blocks
SELECT array('a', 'b')[length({run}) - 1] AS x FROM blocks
SELECT CAST({run} AS BINARY) AS x FROM blocks
SELECT {run}::BINARY AS x FROM blocks
SELECT * FROM blocks WHERE miner BETWEEN 'a' AND {run}
SELECT * FROM blocks WHERE miner LIKE {run}
SELECT * FROM blocks WHERE miner LIKE ANY ('a', {run})
SELECT * FROM blocks WHERE miner RLIKE {run}
SELECT * FROM blocks WHERE miner IS DISTINCT FROM {run}
SELECT trim(BOTH 'x' FROM {run}) AS x FROM blocks
SELECT position('x' IN {run}) AS x FROM blocks
SELECT overlay({run} PLACING 'x' FROM 1) AS x FROM blocks
SELECT extract(YEAR FROM CAST({run} AS DATE)) AS x FROM blocks
SELECT date_add(DATE'2024-01-01', length({run})) AS x FROM blocks
SELECT make_interval(length({run})) IS NULL AS x FROM blocks
SELECT miner COLLATE UTF8_LCASE = {run} AS x FROM blocks
SELECT * REPLACE ({run} AS miner) FROM blocks
SELECT * EXCEPT (miner), {run} AS x FROM blocks
SELECT * FROM range(length({run}))
SELECT * FROM explode(array({run}))
SELECT * FROM explode(collection => array({run}))
SELECT mask({run}, upperChar => 'X') AS x FROM blocks
SELECT /*+ BROADCAST(b) */ * FROM blocks b JOIN ({rows}) ON true
SELECT /*+ COALESCE(1) */ {run} AS x FROM blocks
SELECT /* harmless */ {run} AS x -- really
FROM blocks SELECT miner SELECT {run}
FROM blocks SELECT count(*) OVER w AS n WINDOW w AS (ORDER BY {run})
SELECT any_value(miner) IGNORE NULLS, max({run}) AS x FROM blocks
SELECT DISTINCT {run} AS x FROM blocks
SELECT {run}, {run} FROM (SELECT * FROM (SELECT * FROM (SELECT {run} FROM blocks)))
SELECT 'ScriptTransformation is a word', {run} AS x FROM blocks
SELECT coalesce(NULL, nullif({run}, 'x')) AS x FROM blocks
SELECT try_cast({run} AS INT) AS x FROM blocks
SELECT variant_get(parse_json({run}), '$.a', 'string') AS x FROM blocks
SELECT INTERVAL '1' DAY * length({run}) > INTERVAL '1' DAY AS x FROM blocks
"""

SPELLINGS = """
{rows}
select transform(1) using '{program}' as (a string)
SELECT TRANSFORM(*) USING '{program}' FROM blocks
SELECT TRANSFORM(miner) USING "{program}" AS (a) FROM blocks
SELECT TRANSFORM(1) USING r'{program}' AS (a)
SELECT TRANSFORM(1) USING 'touch ' '{marker}' '; cat' AS (a)
SELECT TRANSFORM/**/(1)/**/USING/**/'{program}'/**/AS/**/(a)
SELECT TRANSFORM(1) USING -- comment
 '{program}' AS (a)
SELECT TRANSFORM(DISTINCT 1) USING '{program}' AS (a)
SELECT TRANSFORM(ALL 1) USING '{program}' AS a, b
MAP 1 USING '{program}' AS (a)
FROM blocks MAP miner USING '{program}' AS (a)
FROM blocks REDUCE miner USING '{program}' AS (a)
REDUCE 1 USING '{program}' AS (a)
SELECT TRANSFORM(1) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING '{program}' AS (a)
SELECT TRANSFORM(1) USING '{program}' AS (a) ROW FORMAT DELIMITED FIELDS TERMINATED BY ','
SELECT TRANSFORM(1) RECORDWRITER 'x' USING '{program}' AS (a) RECORDREADER 'y'
SELECT TRANSFORM(1) USING '\\u0074ouch {marker}' AS (a)
SELECT TRANSFORM(1) USING '\\164ouch {marker}' AS (a)
SELECT TRANSFORM(1) USING '/bin/sh -c "touch {marker}"' AS (a)
SELECT TRANSFORM(1) USING '/usr/bin/env touch {marker}' AS (a)
SELECT TRANSFORM(1) USING '{python} -c "open(''{marker}'', ''w'')"' AS (a)
SELECT TRANSFORM(1) USING 'exec {python} -c "open(''{marker}'', ''w'')"' AS (a)
WITH transform AS (SELECT 1 AS using) SELECT TRANSFORM(using) USING '{program}' AS (a) FROM transform
"""

CALLS = """
SELECT reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT try_reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT java_method('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT REFLECT('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT `reflect`('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT builtin.reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT system.builtin.reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT system . builtin /* ( */ . `java_method` -- (
 ('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT IDENTIFIER('reflect')('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT IDENTIFIER(lower('REFLECT'))('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT transform(array('called'), v -> reflect('java.lang.System', 'setProperty', 'trace.hostile', v)) AS x
SELECT * FROM blocks WHERE reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called') = 'x'
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY reflect('java.lang.System', 'setProperty',
 'trace.hostile', 'called'))
SELECT * FROM VALUES (reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called')) AS t(x)
SELECT * FROM blocks LATERAL VIEW reflect('java.lang.System', 'setProperty', 'trace.hostile', 'called') t AS x
FROM blocks |> SELECT java_method('java.lang.System', 'setProperty', 'trace.hostile', 'called') AS x
SELECT reflect('java.lang.Runtime', 'getRuntime') AS x
SELECT from_xml('<a/>', 'a int', map('rowValidationXSDPath', '{secret}')) AS x
SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '{secret}')) AS x
SELECT from_avro(X'00', 'x', map('schema', '{secret}')) AS x
SELECT from_protobuf(X'00', 'x', '{secret}') AS x
SELECT to_protobuf(named_struct('x', 1), 'x', '{secret}') AS x
SELECT input_file_name() AS x FROM blocks
SELECT my_udf(1) AS x
SELECT session.my_udf(1) AS x
SELECT spark_catalog.default.my_udf(1) AS x
SELECT * FROM python_worker_logs()
SELECT * FROM my_table_function(1)
SELECT * FROM system.builtin.collations()
"""

RELATIONS = """
SELECT * FROM text.`{secret}`
SELECT * FROM TEXT.`{secret}`
SELECT * FROM binaryFile.`{secret}`
SELECT * FROM csv.`{secret}`
SELECT * FROM json.`{secret}`
SELECT * FROM parquet.`{secret}`
SELECT * FROM orc.`{secret}`
SELECT * FROM xml.`{secret}`
SELECT * FROM `text`.`file://{secret}`
SELECT * FROM `org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`{secret}`
SELECT * FROM evm.`x`
SELECT (SELECT max(value) FROM text.`{secret}`) AS x
TABLE text.`{secret}`
FROM text.`{secret}`
FROM text.`{secret}` |> SELECT *
SELECT * FROM blocks JOIN text.`{secret}` ON true
SELECT * FROM blocks WHERE miner IN (SELECT value FROM text.`{secret}`)
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY (SELECT max(value) FROM text.`{secret}`))
WITH text AS (SELECT 1 AS value) SELECT * FROM text.`{secret}`
SELECT * FROM IDENTIFIER('text.`{secret}`')
SELECT * FROM IDENTIFIER('te' || 'xt.`{secret}`')
SELECT * FROM hidden
SELECT * FROM default.hidden
SELECT * FROM spark_catalog.default.hidden
SELECT * FROM global_temp.hidden
SELECT * FROM IDENTIFIER('hidden')
SELECT * FROM IDENTIFIER('hid' || 'den')
TABLE hidden
SELECT (SELECT max(token) FROM hidden) AS x
SELECT * FROM explode(TABLE(hidden))
WITH a AS (WITH hidden AS (SELECT 1 AS token) SELECT * FROM hidden) SELECT * FROM hidden
WITH a AS (SELECT * FROM hidden), hidden AS (SELECT 1 AS token) SELECT * FROM a
WITH hidden AS (SELECT * FROM hidden) SELECT * FROM hidden
WITH hidden AS (SELECT 1 AS token) SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY (SELECT
 max(token) FROM hidden))
SELECT * FROM (WITH hidden AS (SELECT 1 AS token) SELECT * FROM hidden), hidden
SELECT (WITH hidden AS (SELECT 1 AS token) SELECT max(token) FROM hidden) AS x, token FROM hidden
(WITH hidden AS (SELECT 'x' AS token) SELECT * FROM hidden) UNION ALL SELECT * FROM hidden
SELECT * FROM blocks TIMESTAMP AS OF '2024-01-01'
SELECT * FROM blocks VERSION AS OF 1
SELECT * FROM blocks WITH (mergeSchema = 'true')
SELECT * FROM STREAM blocks
SELECT * FROM STREAM(blocks)
SELECT :name AS x
SELECT ? AS x
SELECT * FROM blocks LIMIT :n
SELECT * FROM IDENTIFIER(:name)
"""

STATEMENTS = """
INSERT INTO blocks SELECT 1
CREATE TABLE t AS SELECT 1
DROP VIEW blocks
SET spark.sql.runSQLOnFiles = true
SELECT 1; SELECT 2
EXPLAIN SELECT 1
EXECUTE IMMEDIATE 'SELECT 1'
BEGIN SELECT 1; END
ADD JAR '{secret}'
CACHE TABLE blocks
REFRESH '{secret}'
DESCRIBE blocks
SHOW TABLES
DECLARE x INT
CALL p()
FROM blocks INSERT INTO t SELECT *
"""


def hostile_selects(directory: Path, secret: Path, python: str) -> Iterator[tuple[str, Path]]:
    """Yield the queries, each with the marker file that it tries to create."""
    templates = [
        *split_texts(PLACES),
        *split_texts(SPELLINGS),
        *split_texts(CALLS),
        *split_texts(RELATIONS),
    ]
    for number, template in enumerate(templates):
        marker = directory / f"marker{number}"
        text = template.replace("{rows}", _ROWS).replace("{run}", _RUN)
        text = text.replace("{program}", _PROGRAM).replace("{python}", python)
        yield text.replace("{marker}", str(marker)).replace("{secret}", str(secret)), marker


def hostile_statements(secret: Path) -> list[str]:
    """Statements that are not one SELECT."""
    return [text.replace("{secret}", str(secret)) for text in split_texts(STATEMENTS)]


def split_texts(texts: str) -> list[str]:
    """One text per line. A line that starts with a space continues the line before."""
    joined = texts.strip().replace("\n ", "\0")
    return [text.replace("\0", "\n ") for text in joined.split("\n")]
