"""Admit the statements of a query by DuckDB's own parser, and say in one line why one is refused.

This is the first wall around a query. Behind it the archive is opened read-only, without other files and
network, with a locked configuration and bounded memory and disk (:mod:`.store`).
"""

import re
from collections.abc import Iterator
from typing import Final

import duckdb

from unstable_stream.errors import ArchiveError

_READING: Final = frozenset(("SELECT", "EXPLAIN", "MULTI"))
"""Kinds of statements that read. ``SELECT`` is also ``FROM``, ``WITH``, ``VALUES``, ``DESCRIBE``, ``SHOW``
and ``SUMMARIZE``; ``MULTI`` is a ``PIVOT`` that looks for its columns first.
"""
_CHANGING: Final = frozenset(
    ("INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "ALTER", "DROP", "TRANSACTION", "VACUUM", "CALL")
)
"""``CALL`` is also ``CHECKPOINT``, ``VACUUM`` also ``ANALYZE``."""
_REACHING: Final = frozenset(("COPY", "COPY_DATABASE", "EXPORT", "ATTACH", "DETACH", "LOAD", "CREATE", "SET"))
"""``SET`` is also ``USE``; settings are locked."""
_FOUND_COLUMNS: Final = "CREATE"
"""Of a ``PIVOT`` that looks for its columns, DuckDB 1 makes a ``CREATE`` without text, and a ``SELECT``."""

UNSAFE_FUNCTIONS: Final = frozenset(
    (
        # They read memory at an address, and end the process with a wrong one.
        *("arrow_scan", "arrow_scan_dumb", "pandas_scan", "python_arrow_scan", "python_map_function"),
        # They run what no parser has seen.
        *("json_execute_serialized_sql", "query"),
        # They change the engine; a log that cannot be written ends the process.
        *("checkpoint", "force_checkpoint", "disable_logging", "enable_logging", "truncate_duckdb_logs"),
        *("disable_profiling", "enable_profiling", "write_log", "create_external_resource"),
        *("deregister_external_resource", "destroy_external_resource", "register_external_resource"),
        "register_external_resource_type",
    )
)
"""Functions of DuckDB that a statement may not call, though it only reads."""

_LONGEST: Final = 200_000
_DEEPEST: Final = 50
"""Brackets in brackets. The time to plan a nested list grows with a power of the depth, and during it a query
cannot be interrupted: 900 take minutes.
"""
_MOST_LAMBDAS: Final = 16
"""The time to plan lambdas in lambdas doubles with each, and 20 take seconds."""
_ANALYZE: Final = re.compile(r"\banaly[sz]e\b", re.IGNORECASE)
_NAME: Final = re.compile(r'["`]?(\w+)')


def admit(connection: duckdb.DuckDBPyConnection, sql: str, *, write: bool, files: bool) -> None:
    """Return if every statement of ``sql`` may run on this connection.

    Args:
        connection: locked already: DuckDB opens the file of an ``IMPORT`` when it parses it.
        sql: any number of statements.
        write: statements that change the archive are admitted.
        files: statements that reach other files are admitted.

    Raises:
        ArchiveError: one is of another kind, calls an unsafe function, or is too long or too deep.
        duckdb.Error: DuckDB cannot parse it.
    """
    if "\0" in sql:
        raise ArchiveError(f"the query has a NUL character, after {sql.index(chr(0)):,} others")
    if len(sql) > _LONGEST:
        raise ArchiveError(f"the query has {len(sql):,} characters; at most {_LONGEST:,} are taken")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(f"the query is no valid text: {error}") from error
    _check_words(sql)
    admitted = _READING | (_CHANGING if write else set()) | (_REACHING if files else set())
    for kind, text in _statements(connection, sql):
        if kind == "EXPLAIN" and _ANALYZE.search(text):
            raise ArchiveError("EXPLAIN ANALYZE is refused, since it runs what it explains: use EXPLAIN")
        if kind in admitted or (kind == _FOUND_COLUMNS and not text):
            continue
        remedy = ""
        if kind in _CHANGING and not write:
            remedy = " Add --write to change the archive."
        elif kind in _REACHING - {"SET"} and not files:
            remedy = " Add --files to let a query read and write files (files=True in Python)."
        raise ArchiveError(
            f"a statement of the kind {kind.replace('_', ' ')} is refused: a query reads, with SELECT, FROM, "
            f"WITH, VALUES, PIVOT, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN.{remedy}"
        )


def _statements(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[str, str]]:
    """Return the kind and the text of each statement; DuckDB's text is empty for what it adds itself."""
    try:
        return [(each.type.name, each.query) for each in connection.extract_statements(sql)]
    except (ValueError, IndexError) as error:
        # Statements that DuckDB knows, and its Python package does not: UPDATE EXTENSIONS.
        raise ArchiveError(f"DuckDB's Python package cannot take this query apart: {error}") from error


def _check_words(sql: str) -> None:
    depth, lambdas, name = 0, 0, ""
    for word in _words(sql):
        depth += (word[0] in "([{") - (word[0] in ")]}")
        if depth > _DEEPEST:
            raise ArchiveError(f"the query has more than {_DEEPEST} brackets in each other")
        if word[0] == "(" and name in UNSAFE_FUNCTIONS:
            raise ArchiveError(f"the function {name} is refused: it does not read the archive")
        found = _NAME.match(word)
        name = found[1].lower() if found else ""
        lambdas += name == "lambda"
        if lambdas > _MOST_LAMBDAS:
            raise ArchiveError(f"the query has more than {_MOST_LAMBDAS} lambdas")


def _words(sql: str) -> Iterator[str]:
    """Yield the words and signs of ``sql`` but strings and comments."""
    text = sql.encode()
    tokens = duckdb.tokenize(sql)
    ends = [*(start for start, _ in tokens), len(text)][1:]
    for (start, kind), end in zip(tokens, ends, strict=True):
        if not str(kind).endswith(("string_const", "comment")):
            yield text[start:end].decode(errors="replace")
