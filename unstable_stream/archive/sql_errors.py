"""Explain a wrong query in one line: the place of the mistake, and names that come close."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import duckdb

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.view_files import load_views
from unstable_stream.errors import did_you_mean

JSON_ERRORS: Final = "SET errors_as_json = true"
"""Statements to execute first, so that errors contain their place in the query."""

_SETTINGS_AND_OVERLOADS: Final = ("Candidate functions", "Possible solutions", "This limit was set by")
_ENDS_WITH_OFFSET: Final = re.compile(r"\boffset\W*$", re.IGNORECASE)


def explain(error: duckdb.Error, sql: str) -> str:
    """Return one line: the mistake that DuckDB found, its place in ``sql``, and the remedy."""
    details = _details(error)
    message = " ".join(line.strip() for line in _lines(details["exception_message"]))
    before = ""
    if "position" in details:
        before = sql.encode()[: int(details["position"])].decode(errors="replace")  # DuckDB counts bytes
        message = f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}: {message}"
    advice = " ".join(part for part in _advice(details, before) if part)
    return f"{message if message.endswith(('.', '!')) or not advice else message + '.'} {advice}".rstrip()


def _details(error: duckdb.Error) -> Mapping[str, Any]:
    text = str(error)
    _, brace, body = text.partition("{")
    try:
        details = json.loads(brace + body)
    except json.JSONDecodeError:
        details = {}
    return details if "exception_message" in details else {"exception_message": text}


def _lines(message: str) -> Iterable[str]:
    """Leave out DuckDB's own proposals: names that are not alike at all, overloads, settings (locked)."""
    for line in message.splitlines():
        if line.startswith(("Did you mean", "Candidate bindings", "LINE ")):
            continue
        if line.strip().startswith(_SETTINGS_AND_OVERLOADS):
            return
        yield line


def _advice(details: Mapping[str, Any], before: str) -> Iterable[str]:
    name, kind, message = details.get("name"), details.get("type"), details["exception_message"]
    candidates = str(details.get("candidates") or "").split(",")
    if "attached in read-only mode" in message:
        yield "Add --write to change the archive."
    elif details.get("exception_type") == "Out of Memory":
        yield "The memory and disk of a query are bounded: ask for fewer rows or columns, or for one run."
    elif "disabled by configuration" in message:
        yield "Add --files to let a query read and write files."
    elif details.get("error_subtype") == "SYNTAX_ERROR":
        if _ENDS_WITH_OFFSET.search(before):
            yield 'Write the column "offset" in double quotes.'
    elif name is None:
        return
    elif kind == "Table":
        names = _columns_of()
        yield _did_you_mean(name, [*names, *candidates]) or f"Tables and views: {', '.join(sorted(names))}."
    elif kind is not None:
        yield _did_you_mean(name, [*candidates, "wilson_low", "wilson_high"])
    else:
        holders = sorted(relation for relation, columns in _columns_of().items() if name in columns)
        yield f"It is a column of {', '.join(holders)}." if holders else _did_you_mean(name, candidates)
        yield "See the columns with: unstable-stream sql --tables"


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    return did_you_mean(name, names).replace("did", "Did", 1)


def _columns_of() -> Mapping[str, Iterable[str]]:
    tables = {table.name: [column.name for column in table.columns] for table in (EVENTS, *TABLES)}
    return {**tables, **{view.name: list(view.columns) for view in load_views()}}
