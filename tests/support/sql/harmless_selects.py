"""Unusual SELECTs that must pass. The only input is `blocks` (block_number, miner, size, tags)."""

from support.sql.hostile_selects import split_texts

_WIDE = ", ".join(f"block_number + {n} AS column_{n}" for n in range(60))
_CHAIN = ", ".join(f"c{n} AS (SELECT * FROM c{n - 1})" for n in range(1, 25))
_NESTED = "SELECT * FROM (" * 20 + "SELECT * FROM blocks" + ")" * 20
_TERMS = " + ".join(["size"] * 100)
_CASES = " ".join(f"WHEN {n} THEN 'is {n}'" for n in range(100))

_LINES = """
SELECT 'ScriptTransformation' AS a FROM blocks
SELECT '... 3 more fields' AS a, '... 9 more characters' AS b FROM blocks
SELECT "using 'sh'" AS a, 'SELECT TRANSFORM(1) USING ''sh''' AS b
SELECT transform(array(1, 2), using -> using + 1) AS transform
SELECT 1 AS using, 2 AS transform, 3 AS map, 4 AS reduce, 5 AS reflect
SELECT using.using FROM (SELECT 1 AS using) AS `using`
WITH using AS (SELECT 1 AS transform) SELECT transform FROM using
SELECT a.miner FROM blocks a JOIN blocks b USING (block_number)
SELECT a.miner FROM blocks a JOIN blocks b USING(block_number, miner)
SELECT 'reflect(' AS a, 'java_method' AS b -- reflect('x')
SELECT 1 AS `reflect`, 2 AS `java_method(`
SELECT '== Parsed Logical Plan ==' AS a
SELECT 'text.`/etc/passwd`' AS a
SELECT 1 AS `a.b`, 2 AS `c``d`
SELECT `a.b` FROM (SELECT 1 AS `a.b`)
SELECT 'IDENTIFIER(' AS identifier
SELECT identifier FROM (SELECT 1 AS identifier)
SELECT ':name ? $1 ${env:HOME}' AS a
SELECT /* SELECT TRANSFORM(1) USING 'sh' */ 1 AS a
SELECT /* outer /* inner */ outer */ 1 AS a
SELECT 1 AS a -- USING 'sh'
SELECT r'\\' AS a, '\\'' AS b, "\\"" AS c
SELECT '\\u0041\\x42' AS a
SELECT 'Grüße, 世界' AS `Spalte`, miner AS `größe` FROM blocks
SELECT count(*) OVER w AS n, sum(size) OVER (ORDER BY size ROWS 2 PRECEDING) AS s FROM blocks WINDOW w AS
 (PARTITION BY miner ORDER BY block_number)
SELECT count(*) OVER v AS n FROM blocks WINDOW w AS (ORDER BY size), v AS w
SELECT count(*) OVER w AS n FROM blocks WINDOW w AS (ORDER BY (SELECT max(size) FROM blocks))
SELECT lag(size, 1, 0) IGNORE NULLS OVER (ORDER BY block_number) AS a FROM blocks
SELECT nth_value(size, 2) OVER (ORDER BY block_number RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED
 FOLLOWING) AS a FROM blocks
SELECT * FROM blocks QUALIFY row_number() OVER (PARTITION BY miner ORDER BY size DESC) = 1
SELECT * FROM (SELECT miner, size FROM blocks) PIVOT (sum(size) AS total FOR miner IN ('a' AS x, 'b' AS y))
SELECT * FROM (SELECT 1 AS p, 2 AS q) UNPIVOT INCLUDE NULLS (v FOR k IN (p AS first, q))
SELECT * FROM blocks UNPIVOT (v FOR k IN (block_number))
SELECT miner, count(*) AS n FROM blocks GROUP BY ROLLUP (miner)
SELECT miner, size, grouping_id() AS g, count(*) AS n FROM blocks GROUP BY CUBE (miner, size)
SELECT miner, size, count(*) AS n FROM blocks GROUP BY GROUPING SETS ((miner), (size), ())
SELECT miner, count(*) AS n FROM blocks GROUP BY ALL ORDER BY ALL
SELECT miner, max(size) AS m FROM blocks GROUP BY 1 HAVING max(size) > 1 ORDER BY 2 DESC NULLS LAST
SELECT count(*) FILTER (WHERE size > 1) AS n, count(DISTINCT miner) AS m FROM blocks
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY size) AS p, listagg(miner, ',') WITHIN GROUP (ORDER BY
 miner) AS l FROM blocks
SELECT approx_count_distinct(miner) AS n, max_by(miner, size) AS m, collect_set(miner) AS c FROM blocks
SELECT any_value(miner) AS a, first(miner) AS f, last(miner) IGNORE NULLS AS l FROM blocks
SELECT aggregate(array(1, 2), 0, (a, x) -> a + x, a -> a * 2) AS a
SELECT filter(tags, (t, i) -> i > 0 AND t <> 'x') AS a, exists(tags, t -> t = 'a') AS b FROM blocks
SELECT map_filter(map('a', 1), (k, v) -> v > 0) AS a, transform_values(map('a', 1), (k, v) -> v + 1) AS b
SELECT zip_with(array(1), array(2), (x, y) -> x + y) AS a, array_sort(tags, (l, r) -> length(l) - length(r)) AS
 b FROM blocks
SELECT block_number, tag FROM blocks LATERAL VIEW explode(tags) t AS tag
SELECT block_number, i, tag FROM blocks LATERAL VIEW OUTER posexplode(tags) t AS i, tag
SELECT * FROM blocks, LATERAL explode(tags) AS t(tag)
SELECT * FROM blocks b, LATERAL (SELECT max(size) AS m FROM blocks c WHERE c.miner = b.miner)
SELECT * FROM range(10)
SELECT * FROM range(1, 10, 2) AS r(n)
SELECT * FROM explode(array(1, 2)) AS t(x)
SELECT * FROM stack(2, 1, 2, 3, 4) AS t(a, b)
SELECT stack(2, 'a', 1, 'b', 2) AS (k, v)
SELECT inline(array(struct(1 AS a, 'b' AS b)))
SELECT json_tuple('{"a": 1}', 'a', 'b') AS (a, b)
SELECT * FROM VALUES (1, 'a'), (2, NULL) AS t(n, s)
VALUES (1, 'a'), (2, 'b')
TABLE blocks
FROM blocks
FROM blocks SELECT miner WHERE size > 1
FROM blocks |> WHERE size > 1 |> EXTEND size * 2 AS twice |> SET size = 0 |> DROP tags |> ORDER BY twice |> LIMIT 3
FROM blocks |> AGGREGATE count(*) AS n, sum(size) AS s GROUP BY miner |> WHERE n > 0 |> AS t |> SELECT t.n
FROM blocks |> SELECT miner |> UNION ALL (SELECT 'x') |> JOIN (SELECT 'x' AS miner) USING (miner)
FROM blocks |> SELECT miner, size |> PIVOT (sum(size) FOR miner IN ('a', 'b'))
FROM blocks |> SELECT count(*) OVER w AS n WINDOW w AS (PARTITION BY miner)
(SELECT miner FROM blocks) INTERSECT ALL (SELECT miner FROM blocks) EXCEPT (SELECT 'x')
SELECT miner FROM blocks MINUS SELECT 'x' ORDER BY 1 LIMIT 10 OFFSET 1
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t
WITH blocks AS (SELECT * FROM blocks WHERE size > 1) SELECT * FROM blocks
WITH a AS (WITH b AS (SELECT 1 AS x) SELECT * FROM b), b AS (SELECT x + 1 AS y FROM a) SELECT * FROM a, b
WITH A AS (SELECT 1 AS x) SELECT * FROM a
SELECT (WITH t AS (SELECT max(size) AS m FROM blocks) SELECT m FROM t) AS m
SELECT * FROM BLOCKS b WHERE EXISTS (SELECT 1 FROM Blocks c WHERE c.size > b.size)
SELECT * FROM blocks WHERE (miner, size) IN (SELECT miner, max(size) FROM blocks GROUP BY miner)
SELECT * FROM blocks a LEFT SEMI JOIN blocks b ON a.miner = b.miner AND a.size < b.size
SELECT * FROM blocks a FULL OUTER JOIN (SELECT 1 AS z) ON a.size = z
SELECT * FROM blocks NATURAL LEFT JOIN (SELECT 'a' AS miner, 1 AS z)
SELECT /*+ BROADCAST(b), REPARTITION(2) */ a.miner FROM blocks a JOIN blocks b ON a.miner = b.miner
SELECT * FROM blocks TABLESAMPLE (50 PERCENT) REPEATABLE (7)
SELECT * FROM blocks TABLESAMPLE (2 ROWS) SORT BY size
SELECT * FROM blocks DISTRIBUTE BY miner SORT BY size
SELECT * FROM blocks CLUSTER BY miner
SELECT * EXCEPT (tags) FROM blocks
SELECT blocks.*, size AS again FROM blocks
SELECT DATE'2024-01-02' + INTERVAL 1 DAY AS d, TIMESTAMP'2024-01-02 03:04:05' - INTERVAL '1' HOUR AS t
SELECT extract(YEAR FROM DATE'2024-01-02') AS y, date_part('month', DATE'2024-01-02') AS m, timestampadd(DAY,
 1, TIMESTAMP'2024-01-01 00:00:00') AS t
SELECT current_date AS d, current_timestamp() AS t, now() AS n, unix_timestamp() AS u
SELECT trim(BOTH 'x' FROM miner) AS a, position('a' IN miner) AS p, overlay(miner PLACING 'x' FROM 1 FOR 2) AS
 o, substring(miner FROM 1 FOR 2) AS s FROM blocks
SELECT miner LIKE 'a/_%' ESCAPE '/' AS a, miner ILIKE ANY ('A%', 'b%') AS b, miner RLIKE '^a' AS c, NOT miner
 LIKE ALL ('a', 'b') AS d FROM blocks
SELECT CASE size WHEN 1 THEN 'one' ELSE 'more' END AS a, if(size > 1, 1, 0) AS b, nvl(miner, 'x') AS c FROM blocks
SELECT size BETWEEN 1 AND 2 AS a, size <=> NULL AS b, miner IS DISTINCT FROM 'a' AS c, (size > 1) IS NOT
 UNKNOWN AS d FROM blocks
SELECT -size AS a, ~size AS b, size & 3 | 4 ^ 1 AS c, size << 2 AS d, size DIV 2 AS e, size % 2 AS f, +size AS
 g FROM blocks
SELECT CAST(size AS DECIMAL(38, 10)) AS a, size::STRING AS b, try_cast(miner AS INT) AS c, X'00ff' AS d,
 1.5e3BD AS e FROM blocks
SELECT tags[0] AS a, map('k', 1)['k'] AS b, named_struct('x', struct(1 AS y)).x.y AS c, element_at(tags, -1) AS
 d FROM blocks
SELECT sha2(miner, 256) AS a, hex(unhex('ff')) AS b, conv('ff', 16, 10) AS c, xxhash64(miner) AS d FROM blocks
SELECT from_json('{"a": 1}', 'a INT') AS a, to_json(struct(1 AS x)) AS b, get_json_object('{"a": 1}', '$.a') AS
 c, from_csv('1', 'a INT') AS d
SELECT parse_json('{"a": 1}'):a::INT AS a, variant_get(parse_json('[1]'), '$[0]', 'int') AS b
SELECT miner COLLATE UTF8_LCASE = 'A' AS a FROM blocks
SELECT raise_error('never') AS a FROM blocks WHERE false
SELECT mask(miner, upperChar => 'X') AS a, system.builtin.abs(size) AS b, builtin.upper(miner) AS c FROM blocks
SELECT window.start AS a, count(*) AS n FROM (SELECT TIMESTAMP'2024-01-01 00:00:00' AS t) GROUP BY window(t, '1 hour')
SELECT DISTINCT ON_ AS b FROM (SELECT 1 AS ON_)
SELECT INTERVAL '1-2' YEAR TO MONTH > INTERVAL '1' MONTH AS a, make_date(2024, 1, 2) AS b, sequence(1, 3) AS c
SELECT 1 a, 2 AS `b c`, 3 `select`
"""
HARMLESS = [
    f"SELECT {_WIDE} FROM blocks",
    f"WITH wide AS (SELECT {_WIDE} FROM blocks) SELECT *, column_1 + column_2 AS more FROM wide",
    f"WITH c0 AS (SELECT * FROM blocks), {_CHAIN} SELECT * FROM c24",
    _NESTED,
    f"SELECT {_TERMS} AS total FROM blocks",
    f"SELECT CASE size {_CASES} END AS word FROM blocks",
    f"SELECT * FROM blocks WHERE size IN ({', '.join(map(str, range(500)))})",
    "SELECT 1 AS a;",
    "\n\n  SELECT\n\t1 AS a\n",
    *split_texts(_LINES),
]
