"""Ask the archive in SQL: an editor, rows, a chart, files; with the guard of ``unstable-stream sql``."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from unstable_stream.archive import held, query
from unstable_stream.archive.read import LONGEST_S, MOST_ROWS, Cancel, stream, too_many_bytes, write_parquet
from unstable_stream.archive.reference import EXAMPLES, relations
from unstable_stream.errors import ArchiveError, ConfigError
from unstable_stream.history.views.written import cell_text, write_csv
from unstable_stream.ui.web.pages.narrowing import facet, links, narrow
from unstable_stream.ui.web.site import Shelf, Site, page

_MOST_BYTES: Final = 2_000_000_000
"""Of a file of rows: it is written to the temporary directory first."""
_BETWEEN_LOOKS: Final = 2048
_EXACT: Final = 2**53
"""Whole numbers from here on are text: a browser rounds them."""


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page with the query of its address."""
    return page(
        "sql.html.jinja",
        site,
        shelf,
        sql=request.query_params.get("q", ""),
        foreign=request.headers.get("sec-fetch-site", "") in ("cross-site", "same-site"),
        relations=relations(),
        examples=EXAMPLES,
        longest_s=int(LONGEST_S),
    )


def browse(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return all tables and views, with the tables' numbers of rows; those of views take longer."""
    known = relations()
    counts: dict[str, int] = {}
    if shelf.place.has_archive:
        tables = [each.name for each in known if each.kind == "table"]
        sql = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM \"{name}\"" for name in tables)
        counts = shelf.remember("counts", lambda archive: dict(query(archive, sql).rows))
    return page("data.html.jinja", site, shelf, relations=known, counts=counts)


def game_of(site: Site, shelf: Shelf, request: Request) -> Response:
    """Lead to the game of a trajectory."""
    trajectory = request.path_params["trajectory"]
    with shelf.reading() as archive:
        found = query(archive, "SELECT game_id FROM trajectories WHERE trajectory_id = $1", [trajectory]).rows
    if not found:
        raise HTTPException(404, f"The archive has no trajectory {trajectory!r}.")
    return RedirectResponse(shelf.href("games", found[0][0]), 303)


@contextmanager
def _cancellable(request: Request) -> Iterator[tuple[str, Cancel]]:
    """Yield the query and what ends it: that its page waits for it no longer, or its time."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        # A link or a form of another site must not keep this machine busy.
        raise HTTPException(403, "Only the SQL page asks for rows: open it, look at the query, and ask.")
    sql = request.query_params.get("q", "").strip()
    if not sql:
        raise ConfigError("there is no query")
    end: Cancel = request.state.gone
    with end.after(LONGEST_S):
        yield sql, end


def rows(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the first thousand rows as JSON, or one line that says what is wrong."""
    try:
        with _cancellable(request) as (sql, end), held(shelf.archive):
            asked = narrow(shelf, sql, request.query_params, cancel=end, most=MOST_ROWS + 1)
            with stream(shelf.archive, asked.sql, asked.parameters or None, cancel=end) as result:
                found = list(islice(result.rows, MOST_ROWS + 1))
            leads = links(shelf, result.columns, found[:MOST_ROWS])
    except (ArchiveError, ConfigError) as error:
        return Response(str(error), 400, media_type="text/plain")
    answer = {
        "columns": result.columns,
        "types": result.types,
        "rows": [[_plain(value) for value in row] for row in found[:MOST_ROWS]],
        "links": leads,
        "more": len(found) > MOST_ROWS,
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


def values(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the values of a column as a part of the page, or one line that says what is wrong."""
    try:
        with _cancellable(request) as (sql, end), held(shelf.archive):
            found = facet(shelf, sql, request.query_params, cancel=end)
    except (ArchiveError, ConfigError) as error:
        return Response(str(error), 400, media_type="text/plain")
    most = max((each.rows for each in (*found.values, *found.bins)), default=1)
    return page("sql_facet.html.jinja", site, shelf, facet=found, most=most)


def _plain(value: Any) -> str | float | int | bool | None:
    """``Any``: what DuckDB makes of a column's type."""
    if value is None or isinstance(value, bool | float):
        return value
    return value if isinstance(value, int) and abs(value) < _EXACT else cell_text(value)


def download_csv(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return all rows as CSV."""
    with _temporary(".csv") as path:
        with (
            _cancellable(request) as (sql, end),
            held(shelf.archive),
            path.open("w", encoding="utf-8", newline="") as file,
        ):
            asked = narrow(shelf, sql, request.query_params, cancel=end)
            with stream(shelf.archive, asked.sql, asked.parameters or None, cancel=end) as result:
                write_csv(file, result.columns, _bounded(result.rows, path))
        return _sent(path, "text/csv; charset=utf-8")


def _bounded(rows: Iterable[tuple[Any, ...]], path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows while the file that they are written to is small enough; ``Any``: DuckDB's values."""
    for number, row in enumerate(rows):
        if number % _BETWEEN_LOOKS == 0 and path.stat().st_size > _MOST_BYTES:
            raise too_many_bytes(_MOST_BYTES)
        yield row


def download_parquet(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return all rows as Parquet."""
    with _temporary(".parquet") as path:
        with _cancellable(request) as (sql, end), held(shelf.archive):
            asked = narrow(shelf, sql, request.query_params, cancel=end)
            parameters = asked.parameters or None
            write_parquet(shelf.archive, asked.sql, path, parameters, most_bytes=_MOST_BYTES, cancel=end)
        return _sent(path, "application/vnd.apache.parquet")


@contextmanager
def _temporary(suffix: str) -> Iterator[Path]:
    """Rows go to a file first: whoever downloads may be slow, and the archive is not held for that long."""
    with tempfile.NamedTemporaryFile(prefix="unstable-stream-", suffix=suffix, delete=False) as file:
        path = Path(file.name)
    try:
        yield path
    except BaseException as error:
        path.unlink()
        if isinstance(error, ArchiveError):
            raise ConfigError(str(error)) from error
        raise


def _sent(path: Path, kind: str) -> Response:
    """Send a file, and delete it."""
    gone = BackgroundTask(path.unlink)
    return FileResponse(path, media_type=kind, filename=f"rows{path.suffix}", background=gone)
