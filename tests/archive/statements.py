"""Statements for the SQL doors, each with a part of the error that it ends in; empty: it gives rows."""

from typing import Final

from unstable_stream.archive.statements import UNSAFE_FUNCTIONS

_READING: Final = """
SELECT 1
FROM runs
TABLE runs
VALUES (1), (2)
WITH x AS (SELECT 1 AS a) FROM x
WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t WHERE x < 5) SELECT max(x) FROM t
SELECT 1 UNION SELECT 2 EXCEPT SELECT 3
EXPLAIN SELECT 1
EXPLAIN (FORMAT json) FROM runs
DESCRIBE runs
DESCRIBE SELECT 1 AS a
SHOW TABLES
SHOW DATABASES
SUMMARIZE runs
SELECT * FROM (DESCRIBE runs)
PIVOT (SELECT 1 AS a, 2 AS b) ON a USING sum(b)
WITH p AS (PIVOT (SELECT 1 AS a, 2 AS b) ON a USING sum(b)) FROM p
PIVOT (SELECT 1 AS a, 2 AS b) ON a USING sum(b); SELECT 2
UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b
SELECT 1; SELECT 2
/* DELETE FROM runs */ SELECT 1 -- ; DELETE FROM runs
SELECT 'a; DELETE FROM runs', $$b; DROP TABLE runs$$, "c" FROM (SELECT 1 AS c)
SELECT 'enable_logging()', 'query(1)'
SELECT 'Grüße', '東京', '🙂' AS "größe"
SELECT 1 AS checkpoint, 2 AS query
SELECT count(*) FILTER (WHERE run_id LIKE '%query (%') FROM runs
SELECT row_number() OVER (PARTITION BY type ORDER BY "offset") FROM events QUALIFY row_number() OVER () < 3
SELECT list_transform([1, 2], lambda x: x + 1), {'a': [1]}.a[1], MAP {1: 2}[1]
FROM query_table('runs')
FROM duckdb_settings()
FROM duckdb_secrets()
FROM pragma_table_info('runs')
SELECT current_setting('memory_limit')
FROM json_each('[1, 2]')
SELECT list_filter(list_transform([1], lambda x: x), lambda y: y > 0)
SELECT length(repeat('x', 1000000))
SELECT version(), now(), random(), gen_random_uuid(), current_database()
SELECT 1::DECIMAL(38, 10), 1e300, 'nan'::DOUBLE, '2020-01-01'::DATE, 'a'::BLOB
"""
_REFUSED_KINDS: Final = {
    "INSERT": ("INSERT INTO runs (run_id) VALUES ('x')", "INSERT INTO runs FROM runs"),
    "UPDATE": ("UPDATE runs SET name = 'x'", "SELECT 1; UPDATE runs SET name = 'x'"),
    "DELETE": ("DELETE FROM runs", "TRUNCATE runs", "WITH x AS (SELECT 1) DELETE FROM runs"),
    "MERGE INTO": ("MERGE INTO runs USING (SELECT 1) AS x ON true WHEN MATCHED THEN DELETE",),
    "CREATE": (
        "CREATE TABLE mine (a INTEGER)",
        "CREATE TEMP TABLE t AS SELECT range AS r FROM range(60000000)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TEMP VIEW runs AS SELECT 1",
        "CREATE MACRO f(a) AS a + 1",
        "CREATE SCHEMA s",
        "CREATE SECRET s (TYPE s3)",
    ),
    "ALTER": ("ALTER TABLE runs ADD COLUMN a INTEGER", "COMMENT ON TABLE runs IS 'x'"),
    "DROP": ("DROP TABLE events", "DROP VIEW runs", "DEALLOCATE p"),
    "TRANSACTION": ("BEGIN", "COMMIT", "ROLLBACK", "BEGIN; DELETE FROM events; COMMIT"),
    "VACUUM": ("VACUUM", "ANALYZE"),
    "CALL": ("CHECKPOINT", "CALL pragma_version()"),
    "PREPARE": ("PREPARE p AS SELECT 1", "PREPARE p AS DELETE FROM runs"),
    "EXECUTE": ("EXECUTE p", "EXECUTE p(1)"),
    "SET": (
        "SET memory_limit = '60MB'",
        "SET logging_storage = 'stdout'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET max_expression_depth = 100000",
        "SET VARIABLE x = 1",
        "SET SCHEMA 'main'",
        "RESET memory_limit",
        "USE memory",
    ),
    "PRAGMA": ("PRAGMA enable_profiling", "PRAGMA enable_verification"),
    "COPY": (
        "COPY runs TO '{place}/out.csv'",
        "COPY runs FROM '{place}/secret.txt'",
        "COPY (SELECT 1) TO '/dev/stdout'",
    ),
    "EXPORT": ("EXPORT DATABASE '{place}/out'",),
    "ATTACH": ("ATTACH '{place}/out.duckdb' AS other", "ATTACH ':memory:'", "ATTACH 'https://x.y/z.duckdb'"),
    "DETACH": ("DETACH archive",),
    "LOAD": ("INSTALL httpfs", "FORCE INSTALL httpfs FROM 'http://x.y'", "LOAD httpfs", "LOAD '{place}/x'"),
}
_FILES: Final = """
SELECT * FROM read_text('{place}/secret.txt')
FROM read_csv('{place}/secret.txt')
FROM read_json('{place}/secret.txt')
FROM read_parquet('{place}/secret.txt')
FROM parquet_metadata('{place}/secret.txt')
FROM sniff_csv('{place}/secret.txt')
FROM glob('{place}/*')
FROM '{place}/secret.csv'
SELECT * FROM '/etc/passwd.csv'
FROM 'https://example.org/rows.parquet'
FROM 's3://bucket/rows.parquet'
FROM read_csv('http://127.0.0.1:1/x')
SELECT (SELECT content FROM read_text('{place}/secret.txt'))
WITH x AS (FROM read_text('{place}/secret.txt')) FROM x
DESCRIBE FROM read_csv('{place}/secret.txt')
"""
_WRONG: Final = {
    "SELECT nothing FROM runs": "nothing",
    "FROM nowhere": "nowhere",
    "FROM rows_of_python": "rows_of_python",
    "FROM of_the_frame": "of_the_frame",
    "SELECT getenv('HOME')": "getenv",
    "SELEC 1": "SELEC",
    "IMPORT DATABASE '{place}'": "PRAGMA is refused|disabled by configuration",
    "RESET ALL": "syntax|SET is refused|Can only",
    "SELECT": "SELECT",
    "SELECT 'unterminated": "unterminated",
    "KILL 1": "KILL",
    "UPDATE EXTENSIONS": "EXTENSIONS|cannot take|\\?\\?\\?",
    "SELECT ?": "parameter",
    "SELECT 1 \0 ; DELETE FROM runs": "NUL character, after 9 others",
    "SELECT '\ud800'": "no valid text",
    "SELECT error('mine')": "mine",
    "SELECT 1::INTEGER / 0::INTEGER, 'x'::INTEGER": "Could not convert",
    "FROM query('SELECT 1')": "function query is refused",
    "EXPLAIN ANALYZE FROM runs": "EXPLAIN ANALYZE is refused",
    "SELECT 1; EXPLAIN ANALYSE DELETE FROM metrics": "EXPLAIN ANALYZE is refused",
    "/* a */ explain (FORMAT json, ANALYZE) -- b\n CREATE TABLE x AS SELECT 1": "EXPLAIN ANALYZE is refused",
    "EXPLAIN ANALYZE CALL enable_logging('QueryLog', storage='stdout')": "enable_logging is refused",
    "WITH x AS (DELETE FROM metrics RETURNING *) FROM x": "read-only|needs a SELECT|base table",
    "WITH p AS (PIVOT (SELECT 1 a) ON a USING sum(a)) DELETE FROM metrics": "read-only|DELETE",
    "COPY (PIVOT (SELECT 1 a) ON a USING sum(a)) TO '{place}/x.csv'": "disabled by configuration|COPY",
    "CREATE TABLE t AS PIVOT (SELECT 1 a) ON a USING sum(a)": "read-only|CREATE",
    "SELECT " + "(" * 10_000 + "1" + ")" * 10_000: "more than 50 brackets",
    "(" * 10_000 + "SELECT 1" + ")" * 10_000: "more than 50 brackets",
    "SELECT " + "[" * 900 + "1" + "]" * 900: "more than 50 brackets",
    "SELECT " + "{'a':" * 900 + "1" + "}" * 900: "more than 50 brackets",
    "SELECT " + "/* */ (" * 51 + "1" + ")" * 51: "more than 50 brackets",
    "SELECT " + "list_transform([1], lambda x: " * 26 + "1" + ")" * 26: "more than 16 lambdas",
    "SELECT " + "NOT " * 5_000 + "true": "depth",
    "SELECT 1" + " + 1" * 5_000: "depth",
    "SELECT '" + "x" * 200_000 + "'": "at most 200,000",
    "SELECT 1 -- " + "x" * 1_000_000: "at most 200,000",
}
_CALLS: Final = (
    "FROM {name}()",
    'SELECT * FROM system.main."{name}" /* ( */ -- (\n (NULL)',
    "SELECT 1; WITH x AS (FROM {upper}(NULL)) FROM x",
)

STATEMENTS: Final[list[tuple[str, str]]] = [
    *((sql, "") for sql in ("", " ", ";", "-- nothing", "/* nothing */", *_READING.strip().splitlines())),
    *(
        (sql, f"statement of the kind {kind} is refused")
        for kind, statements in _REFUSED_KINDS.items()
        for sql in statements
    ),
    *((sql, "disabled by configuration") for sql in _FILES.strip().splitlines()),
    *_WRONG.items(),
    *(
        (call.format(name=name, upper=name.upper()), f"function {name} is refused")
        for name in sorted(UNSAFE_FUNCTIONS)
        for call in _CALLS
    ),
    # DuckDB 1 ended the process at these.
    ("CALL enable_logging('QueryLog', storage='file', storage_path='{place}/log'); SELECT 1", "is refused"),
    ("FROM enable_logging('QueryLog', storage='file', storage_path='{place}/log'); SELECT 1", "is refused"),
]

ENDLESS: Final = (
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3",
    "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t",
    "SELECT sum(range) FROM range(100000000000000)",
)
"""Statements that would run for hours."""
